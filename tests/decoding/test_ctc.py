"""CTC against sums over all alignments, which are few for a few frames."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding import ctc
from regard.decoding.ctc import (
    collapse,
    ctc_log_probs,
    ctc_loss,
    forced_alignment,
    greedy_search,
    prefix_beam_search,
    required_frames,
)
from regard.decoding.joint import JointDecoder, Prefix
from regard.decoding.search import search
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import State

CASES = 500


def case(seed: int) -> tuple[np.ndarray, int]:
    """Log probabilities of a few frames, and which symbol is the blank."""
    rng = np.random.default_rng(seed)
    frames, symbols = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    logits = rng.normal(0, 2, (frames, symbols))
    return logits - np.logaddexp.reduce(logits, 1, keepdims=True), int(rng.integers(symbols))


def outputs(log_probs: np.ndarray, blank: int) -> dict[tuple[int, ...], float]:
    """The log probability of every output: the sum over its alignments."""
    frames, symbols = log_probs.shape
    totals: dict[tuple[int, ...], float] = {}
    for alignment in product(range(symbols), repeat=frames):
        output = tuple(collapse(alignment, blank))
        score = log_probs[range(frames), alignment].sum()
        totals[output] = float(np.logaddexp(totals.get(output, -np.inf), score))
    return totals


@pytest.fixture(scope="module")
def cases() -> list[tuple[np.ndarray, int, dict[tuple[int, ...], float]]]:
    return [(log_probs, blank, outputs(log_probs, blank)) for log_probs, blank in map(case, range(CASES))]


def test_the_loss_is_the_sum_over_alignments(cases):
    for log_probs, blank, totals in cases:
        output = max((each for each in totals if each), key=lambda each: (len(each), totals[each]))
        targets = TokenBatch(torch.tensor([output]), torch.tensor([len(output)]))
        logits = torch.tensor(log_probs)[None].float()
        loss = ctc_loss(logits, torch.tensor([len(log_probs)]), targets, blank)
        assert float(loss) == pytest.approx(-totals[output], abs=1e-4)


def test_prefix_beam_search_is_exact_with_enough_beams(cases, monkeypatch):
    monkeypatch.setattr(ctc, "PRUNED", 1e-300)
    for log_probs, blank, totals in cases:
        ranked = sorted(totals.values(), reverse=True)
        hypotheses = prefix_beam_search(torch.tensor(log_probs), blank, len(totals) + 1, 3)
        assert [each.log_probability for each in hypotheses] == pytest.approx(ranked[: len(hypotheses)], abs=1e-9)
        for each in hypotheses:
            assert totals[tuple(each.tokens)] == pytest.approx(each.log_probability, abs=1e-9)


def test_greedy_search_takes_the_best_alignment(cases):
    for log_probs, blank, _ in cases:
        (best,) = greedy_search(torch.tensor(log_probs)[None], blank)
        alignments = product(range(log_probs.shape[1]), repeat=len(log_probs))
        scores = {alignment: log_probs[range(len(log_probs)), alignment].sum() for alignment in alignments}
        first = max(scores, key=lambda alignment: scores[alignment])
        assert best.tokens == collapse(first, blank)
        assert best.log_probability == pytest.approx(scores[first])


def test_forced_alignment_is_the_best_alignment_of_these_tokens(cases):
    aligned = 0
    for log_probs, blank, totals in cases:
        for output in [each for each in totals if each][:5]:
            frames = range(len(log_probs))
            alignments = product(range(log_probs.shape[1]), repeat=len(log_probs))
            possible = [each for each in alignments if tuple(collapse(each, blank)) == output]
            best = max(log_probs[frames, each].sum() for each in possible)
            spans = forced_alignment(torch.tensor(log_probs), output, blank)
            symbols = [blank] * len(log_probs)
            for token, span in zip(output, spans, strict=True):
                symbols[span.start : span.end] = [token] * (span.end - span.start)
            assert tuple(collapse(symbols, blank)) == output
            assert log_probs[frames, symbols].sum() == pytest.approx(best)
            aligned += 1
    assert aligned > CASES


def test_too_few_frames_have_no_alignment(cases):
    for log_probs, blank, totals in cases[:100]:
        tokens = [symbol for symbol in range(log_probs.shape[1]) if symbol != blank][:1] * (len(log_probs) + 1)
        assert required_frames(tokens) == 2 * len(log_probs) + 1
        assert forced_alignment(torch.tensor(log_probs), tokens, blank) == []
        assert all(required_frames(output) <= len(log_probs) for output in totals)


def prefix_of(tokens: tuple[int, ...], log_probs: Tensor, blank: int) -> Prefix:
    prefix = Prefix.empty(log_probs, blank)
    for token in tokens:
        prefix = prefix.append(torch.tensor([token]), log_probs, blank)
    return prefix


def test_prefix_scores_sum_over_all_outputs_with_the_prefix(cases):
    for array, blank, totals in cases:
        log_probs = torch.tensor(array)[None]
        for output in list(totals)[:4]:
            prefix = prefix_of(output, log_probs, blank)
            beginning = [total for other, total in totals.items() if other[: len(output)] == output]
            assert float(prefix.score) == pytest.approx(np.logaddexp.reduce(beginning), abs=1e-9)
            assert float(prefix.total) == pytest.approx(totals[output], abs=1e-9)
            extended = prefix.extension_scores(log_probs)[0]
            for token in set(range(array.shape[1])) - {blank}:
                longer = (*output, token)
                parts = [total for other, total in totals.items() if other[: len(longer)] == longer]
                expected = np.logaddexp.reduce(parts) if parts else -np.inf
                assert float(extended[token]) == pytest.approx(expected, abs=1e-9)


class Uniform:
    """A decoder with logits that depend on the last token only, whose encoder's CTC logits are its source."""

    def __init__(self, vocabulary: int, seed: int):
        self.table = torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(seed))

    def start(self, source: Any) -> State:
        return State(source[0], None)

    def start_with_emissions(self, source: Any) -> tuple[State, Any]:
        return self.start(source), source

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.table[tokens], state


@pytest.mark.parametrize("weight", [0.3, 0.7, 1.0])
def test_joint_decoding_finds_the_best_sum_of_both_scores(weight):
    blank, begin, end, symbols, frames = 0, 1, 2, 5, 4
    for seed in range(20):
        logits = torch.randn(2, frames, symbols, generator=torch.Generator().manual_seed(seed))
        logits[:, :, [begin, end]] = -20.0
        lengths = torch.tensor([frames, 3])
        network = Uniform(symbols, seed)
        options = DecodeOptions(num_beams=64, length_penalty=0.0, suppress_tokens=(blank,))
        joint = JointDecoder(network, blank, end, weight)
        hypotheses = search(joint, (logits, lengths), begin, end, options, frames + 2)
        attention = network.table.log_softmax(-1)
        for row, (best, *_) in enumerate(hypotheses):
            totals = outputs(logits[row, : lengths[row]].log_softmax(-1).double().numpy(), blank)
            scores = {}
            for output, total in totals.items():
                path = (begin, *output, end)
                attended = float(sum(attention[one, other] for one, other in pairwise(path)))
                scores[output] = (1 - weight) * attended + weight * total
            expected = max(scores, key=lambda each: scores[each])
            assert tuple(best.tokens) == expected
            assert best.log_probability == pytest.approx(scores[expected], abs=1e-3)


def test_padding_changes_nothing():
    logits = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([7, 4])
    together = ctc_log_probs(logits, lengths, blank=1)
    alone = ctc_log_probs(logits[1:, :4], lengths[1:], blank=1)
    assert greedy_search(together, 1)[1] == greedy_search(alone, 1)[0]
    for beams in (1, 5):
        assert prefix_beam_search(together[1], 1, beams) == prefix_beam_search(alone[0], 1, beams)
    assert forced_alignment(together[1], [2, 2, 3], 1) == forced_alignment(alone[0], [2, 2, 3], 1)
