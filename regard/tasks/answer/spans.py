"""Answers as spans of a passage: the best spans of its windows, SQuAD's scores of them, and the logits and loss.

The score of a span is the start logit of its first token plus the end logit of its last token (Devlin et al. 2019,
section 4.2). The null score, of no answer, is the same sum at [CLS], the minimum over all windows (section 4.3).
Rajpurkar et al. 2016, section 6.1, and 2018.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike
from torch import Tensor

from regard.metrics.bootstrap import SIGNATURE, bootstrap_mean
from regard.metrics.squad import SCORES
from regard.models.heads.token import SpanClassifier
from regard.tasks.answer.windows import QABatch, Windows, collate
from regard.tasks.batching import encode_batches

BATCH = 32  # default number of windows per batch

MAX_WINDOW = 384  # default length of a window in tokens, if the network's context is as long

# ── candidates ───────────────────────────────────────────────────────────────────────────────────────────────────


class WindowLogits(NamedTuple):
    """The start and end logits of a window's row, and which positions of the row are tokens of the passage."""

    first: np.ndarray
    last: np.ndarray
    begin: int  # position of the window's first passage token,
    end: int  # and of the one after its last
    offset: int  # index in the passage of the token at `begin`


class Span(NamedTuple):
    """The first and last token of a span of the passage."""

    score: float
    first: int
    last: int


class Candidates(NamedTuple):
    """The candidate answers of a question, best first, and the score of no answer."""

    spans: list[Span]
    null_score: float

    @property
    def margin(self) -> float:
        """The null score minus the score of the best span."""
        return self.null_score - self.spans[0].score if self.spans else float("inf")


def best_spans(window: WindowLogits, best: int = 20, max_length: int = 30) -> list[Span]:
    """The best non-overlapping spans of a window, at most `max_length` tokens long, best first."""
    start_logits = np.asarray(window.first, float)[window.begin : window.end]
    end_logits = np.asarray(window.last, float)[window.begin : window.end]
    end_logits = np.append(end_logits, np.full(max_length - 1, -np.inf))
    scores = start_logits[:, None] + sliding_window_view(end_logits, max_length)  # (first token, tokens after it)
    first = np.arange(len(scores))[:, None]
    last = first + np.arange(max_length)
    spans: list[Span] = []
    while len(spans) < best and scores.size and np.isfinite(score := scores.max()):
        begin, extra = divmod(int(scores.argmax()), max_length)
        spans.append(Span(float(score), window.offset + begin, window.offset + begin + extra))
        scores[(first <= begin + extra) & (last >= begin)] = -np.inf
    return spans


def best_of(windows: Sequence[WindowLogits], best: int = 20, max_length: int = 30) -> Candidates:
    """The best non-overlapping spans of all windows of a question."""
    spans = [span for window in windows for span in best_spans(window, best, max_length)]
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (-span.score, span.first, span.last)):
        if all(span.first > other.last or span.last < other.first for other in kept):
            kept.append(span)
    return Candidates(kept[:best], min(float(window.first[0]) + float(window.last[0]) for window in windows))


class RankedAnswer(NamedTuple):
    """An answer and its characters in the passage; an empty text is no answer. `score` is its probability."""

    text: str
    score: float
    start: int
    end: int


def rank_answers(
    candidates: Candidates, spans: np.ndarray, context: str, threshold: float | None = None
) -> list[RankedAnswer]:
    """The candidates as text, best first. With a threshold, "no answer" is one of them.

    It is first if the margin exceeds the threshold. The probabilities are an uncalibrated softmax over the candidates.
    """
    rows = [(span.score, int(spans[span.first, 0]), int(spans[span.last, 1])) for span in candidates.spans]
    if threshold is not None or not rows:
        rows.append((candidates.null_score, 0, 0))
    scores = np.array([score for score, _, _ in rows])
    weights = np.exp(scores - scores.max())
    probabilities = (weights / weights.sum()).tolist()
    answers = [
        RankedAnswer(context[start:end], probability, start, end)
        for (_, start, end), probability in zip(rows, probabilities, strict=True)
    ]
    if threshold is not None and candidates.margin > threshold:
        return [answers[-1], *answers[:-1]]
    return answers


# ── scores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def percentages(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Exact match and F1 of each answer, in percent."""
    pairs = list(zip(answers, golds, strict=True))
    return {name: 100.0 * np.array([score(*pair) for pair in pairs]) for name, score in SCORES.items()}


def report(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Exact match and F1 in percent with intervals; if some questions have no answer, also for both groups."""
    values = percentages(answers, golds)
    answerable = np.array([bool(gold) for gold in golds])
    results: dict[str, Any] = {
        "scores": [bootstrap_mean(name, each, f"squad|{SIGNATURE}") for name, each in values.items()]
    }
    if not answerable.all():
        for name, group in (("answerable", answerable), ("unanswerable", ~answerable)):
            if group.any():
                means = {metric: float(each[group].mean()) for metric, each in values.items()}
                results[name] = {"questions": int(group.sum()), **means}
    return results


def best_threshold(margins: Sequence[float], scores: ArrayLike, answerable: Sequence[bool]) -> tuple[float, float]:
    """The threshold of the margin with the best mean score, and that score in percent.

    `scores` are those of each question's best span. No answer scores 1 for an unanswerable question, else 0.
    """
    order = np.argsort(margins, kind="stable")
    margin = np.asarray(margins, float)[order]
    score = np.asarray(scores, float)[order]
    unanswerable = ~np.asarray(answerable, bool)[order]
    gains = np.concatenate([[0.0], np.cumsum(np.where(unanswerable, -1.0, score))])  # of answering the first k
    borders = np.flatnonzero(np.append(margin[1:] != margin[:-1], True)) + 1  # equal margins are not separated
    counts = np.concatenate([[0], borders])
    answered = int(counts[np.argmax(gains[counts])])
    threshold = float(margin[answered - 1]) if answered else float(np.nextafter(margin[0], -np.inf))
    return threshold, 100.0 * float(unanswerable.sum() + gains[answered]) / len(margin)


# ── logits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def mask_logits(logits: Tensor, batch: QABatch) -> Tensor:
    """Logits of [CLS] and the window's passage tokens; −∞ at the question, the separators and padding."""
    positions = torch.arange(logits.shape[1], device=logits.device)
    valid = (positions >= batch.context[:, :1]) & (positions < batch.context[:, 1:])
    valid[:, 0] = True
    return logits.float().masked_fill(~valid[:, :, None], float("-inf"))


def span_loss(logits: Tensor, batch: QABatch, smoothing: float = 0.0) -> Tensor:
    """The mean of the cross-entropies of the first and of the last token, summed over the windows.

    Label smoothing is spread over the positions that are not masked.
    """
    loss = F.cross_entropy(logits, torch.stack([batch.first, batch.last], 1), reduction="sum")
    if smoothing:
        valid = logits.isfinite()
        uniform = -(logits.log_softmax(1).masked_fill(~valid, 0.0).sum(1) / valid.sum(1)).sum()
        loss = (1 - smoothing) * loss + smoothing * uniform
    return loss / 2


@torch.no_grad()
def score_windows(
    network: SpanClassifier,
    windows: Windows,
    indices: Sequence[int],
    batch_size: int = BATCH,
    on_loss: Callable[[float], None] = lambda loss: None,
) -> dict[int, WindowLogits]:
    """The logits of windows by index, computed in batches of similar length. `on_loss` gets the loss of each batch."""
    scored: dict[int, WindowLogits] = {}

    def encode(rows: list[int]) -> tuple[QABatch, Tensor]:
        batch = collate(windows, [indices[row] for row in rows]).to(next(network.parameters()).device)
        return batch, mask_logits(network(batch.text), batch)

    lengths = [int(windows.lengths[index]) for index in indices]
    for _, (batch, logits) in encode_batches(network, lengths, batch_size, encode):
        on_loss(float(span_loss(logits, batch)))
        rows = zip(batch.indices.tolist(), logits.cpu().numpy(), batch.context.tolist(), strict=True)
        for index, row, (begin, end) in rows:
            scored[index] = WindowLogits(row[:, 0], row[:, 1], begin, end, windows.window(index).begin)
    return scored


def find_spans(
    network: SpanClassifier,
    windows: Windows,
    questions: Sequence[int],
    batch_size: int = BATCH,
    best: int = 1,
    on_loss: Callable[[float], None] = lambda loss: None,
) -> list[Candidates]:
    """The `best` candidate answers to each of these questions, best first."""
    indices = [index for question in questions for index in windows.windows_of(question)]
    scored = score_windows(network, windows, indices, batch_size, on_loss)
    return [best_of([scored[index] for index in windows.windows_of(question)], best) for question in questions]
