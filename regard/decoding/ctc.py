"""Connectionist temporal classification: from a distribution over tokens and blank in each frame to tokens.

An alignment has one symbol per frame. Removing its repetitions, then its blanks, gives the tokens; the probability of
tokens is the sum over all their alignments. Graves et al. 2006.

    a a _ a b b _   ─▶   a a b

Shapes: log_probs (batch, frames, vocabulary), of one source (frames, vocabulary).
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.search import Hypothesis
from regard.layers.inputs import TokenBatch

PRUNED = 1e-4  # a token less likely than this share of the frame's best one extends no prefix of a beam


class Span(NamedTuple):
    """The frames [start, end) of a token, and the mean log probability that they have of it."""

    start: int
    end: int
    score: float


def ctc_log_probs(logits: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """Log probabilities of the symbols of each frame. Frames of padding are certainly blank, which changes nothing."""
    log_probs = logits.float().log_softmax(-1)
    padded = torch.arange(logits.size(1), device=logits.device) >= lengths[:, None]
    certain = torch.full_like(log_probs[0, 0], -torch.inf).index_fill(0, lengths.new_tensor([blank]), 0.0)
    return torch.where(padded[:, :, None], certain, log_probs)


def ctc_loss(logits: Tensor, lengths: Tensor, targets: TokenBatch, blank: int) -> Tensor:
    """−log p(target) of each source (batch,). Zero for one with too few frames, which has no alignment."""
    log_probs = logits.float().log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_probs, targets.tokens, lengths, targets.lengths, blank, "none", zero_infinity=True)


def required_frames(tokens: Sequence[int] | np.ndarray) -> int:
    """The fewest frames that tokens have an alignment to: one each, and a blank between equal ones."""
    return len(tokens) + sum(int(one == other) for one, other in pairwise(tokens))


def collapse(symbols: Sequence[int], blank: int) -> list[int]:
    """The tokens of an alignment."""
    return [symbol for symbol, _ in groupby(symbols) if symbol != blank]


def greedy_search(log_probs: Tensor, blank: int) -> list[Hypothesis]:
    """The tokens of the most probable alignment of each source; the log probability is that of the alignment."""
    best, symbols = log_probs.max(-1)
    totals = best.sum(-1).tolist()
    return [_hypothesis(collapse(row, blank), total) for row, total in zip(symbols.tolist(), totals, strict=True)]


def prefix_beam_search(log_probs: Tensor, blank: int, num_beams: int, count: int = 1) -> list[Hypothesis]:
    """The `count` best outputs of one source, whose probability sums over alignments. Hannun et al. 2014, algorithm 1.

    A prefix of an output has two probabilities: of its alignments that end with blank, and of those that end with its
    last token. With beams for all prefixes, and none pruned, the result is exact.
    """
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}
    for frame in log_probs.cpu().double().numpy():
        candidates = np.flatnonzero(frame >= frame.max() + np.log(PRUNED)).tolist()
        extended: dict[tuple[int, ...], list[float]] = {}
        for prefix, (blanked, spoken) in beams.items():
            total = np.logaddexp(blanked, spoken)
            stay = extended.setdefault(prefix, [-np.inf, -np.inf])
            stay[0] = np.logaddexp(stay[0], total + frame[blank])
            if prefix:
                stay[1] = np.logaddexp(stay[1], spoken + frame[prefix[-1]])
            for token in candidates:
                if token == blank:
                    continue
                before = blanked if prefix and token == prefix[-1] else total
                if before == -np.inf:  # a token repeats only after a blank
                    continue
                longer = extended.setdefault((*prefix, token), [-np.inf, -np.inf])
                longer[1] = np.logaddexp(longer[1], before + frame[token])
        ranked = sorted(extended.items(), key=lambda item: (-np.logaddexp(item[1][0], item[1][1]), item[0]))
        beams = {prefix: (scores[0], scores[1]) for prefix, scores in ranked[:num_beams]}
    return [_hypothesis(list(prefix), float(np.logaddexp(*scores))) for prefix, scores in list(beams.items())[:count]]


def _hypothesis(tokens: list[int], log_probability: float) -> Hypothesis:
    return Hypothesis(tokens, log_probability / max(len(tokens), 1), log_probability, True)


def forced_alignment(log_probs: Tensor, tokens: Sequence[int], blank: int) -> list[Span]:
    """The frames of each token in the most probable alignment (Viterbi); empty if there are too few frames.

    States are blank, token, blank, token, …, blank; from a token the next may follow without blank if it differs.
    """
    frames = len(log_probs)
    if not len(tokens) or frames < required_frames(tokens):
        return []
    symbols = np.full(2 * len(tokens) + 1, blank)
    symbols[1::2] = tokens
    emitted = log_probs.cpu().double().numpy()[:, symbols]
    skips = np.zeros(len(symbols), bool)  # whether a state follows the one two before it
    skips[3::2] = symbols[3::2] != symbols[1:-2:2]
    scores = np.full(len(symbols), -np.inf)
    scores[:2] = emitted[0, :2]
    steps = np.zeros((frames, len(symbols)), int)  # how many states back the best predecessor is
    for frame in range(1, frames):
        one = np.concatenate([[-np.inf], scores[:-1]])
        two = np.where(skips, np.concatenate([[-np.inf, -np.inf], scores[:-2]]), -np.inf)
        options = np.stack([scores, one, two])
        steps[frame] = options.argmax(0)
        scores = options.max(0) + emitted[frame]
    state = len(symbols) - 1 if scores[-1] >= scores[-2] else len(symbols) - 2
    path = np.zeros(frames, int)
    for frame in range(frames - 1, -1, -1):
        path[frame] = state
        state -= steps[frame, state]
    spans = []
    for index in range(len(tokens)):
        where = np.flatnonzero(path == 2 * index + 1)
        score = float(emitted[where, 2 * index + 1].mean())
        spans.append(Span(int(where[0]), int(where[-1]) + 1, score))
    return spans
