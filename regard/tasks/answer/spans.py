"""Answers as spans of a passage: the best spans of its windows, and SQuAD's scores of them. Pure functions.

The score of a span is the start logit of its first token plus the end logit of its last token (Devlin et al. 2019,
section 4.2). The null score, of no answer, is the same sum at [CLS], the minimum over all windows (section 4.3).
Rajpurkar et al. 2016, section 6.1, and 2018.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from regard.metrics.bootstrap import SIGNATURE, bootstrap_mean
from regard.metrics.squad import exact, f1

# ── the best spans ───────────────────────────────────────────────────────────────────────────────────────────────────


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
    """The best spans of a window, at most `max_length` tokens long, best first."""
    scores = _span_scores(window, max_length).ravel()
    indices = np.argpartition(-scores, best - 1)[:best] if len(scores) > best else np.arange(len(scores))
    indices = indices[np.lexsort((indices, -scores[indices]))]
    spans = []
    for index in indices[np.isfinite(scores[indices])].tolist():
        begin, extra = divmod(index, max_length)
        spans.append(Span(float(scores[index]), window.offset + begin, window.offset + begin + extra))
    return spans


def _span_scores(window: WindowLogits, max_length: int) -> np.ndarray:
    """Scores by first token of the passage and number of tokens after it: (tokens, max_length)."""
    first = np.asarray(window.first, float)[window.begin : window.end]
    last = np.asarray(window.last, float)[window.begin : window.end]
    padded = np.append(last, np.full(max_length - 1, -np.inf))
    return first[:, None] + sliding_window_view(padded, max_length)


def disjoint_spans(window: WindowLogits, best: int = 20, max_length: int = 30) -> list[Span]:
    """The best non-overlapping spans of a window, best first."""
    scores = _span_scores(window, max_length).copy()
    spans: list[Span] = []
    first = np.arange(len(scores))[:, None]
    last = first + np.arange(max_length)
    while len(spans) < best and scores.size and np.isfinite(score := scores.max()):
        begin, extra = divmod(int(scores.argmax()), max_length)
        spans.append(Span(float(score), window.offset + begin, window.offset + begin + extra))
        scores[(first <= begin + extra) & (last >= begin)] = -np.inf
    return spans


def best_of(windows: Iterable[WindowLogits], best: int = 20, max_length: int = 30) -> Candidates:
    """The best spans of all windows of a question. A span in several windows has its best score."""
    spans: dict[tuple[int, int], Span] = {}
    null_score = float("inf")
    for window in windows:
        null_score = min(null_score, _null_score(window))
        for span in best_spans(window, best, max_length):
            key = (span.first, span.last)
            spans[key] = max(span, spans.get(key, span))
    return Candidates(sorted(spans.values(), key=_rank)[:best], null_score)


def best_disjoint(windows: Iterable[WindowLogits], best: int = 20, max_length: int = 30) -> Candidates:
    """The best non-overlapping spans of all windows of a question."""
    windows = list(windows)
    kept: list[Span] = []
    for span in sorted((span for window in windows for span in disjoint_spans(window, best, max_length)), key=_rank):
        if all(span.first > other.last or span.last < other.first for other in kept):
            kept.append(span)
    return Candidates(kept[:best], min(map(_null_score, windows), default=float("inf")))


def _null_score(window: WindowLogits) -> float:
    return float(window.first[0]) + float(window.last[0])


def _rank(span: Span) -> tuple[float, int, int]:
    return -span.score, span.first, span.last


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


def report(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, object]:
    """Exact match and F1 in percent with intervals; if some questions have no answer, also for both groups."""
    hits = 100.0 * np.array([exact(answer, gold) for answer, gold in zip(answers, golds, strict=True)])
    overlaps = 100.0 * np.array([f1(answer, gold) for answer, gold in zip(answers, golds, strict=True)])
    answerable = np.array([bool(gold) for gold in golds])
    signature = f"squad|{SIGNATURE}"
    scores = [bootstrap_mean("exact_match", hits, signature), bootstrap_mean("f1", overlaps, signature)]
    results: dict[str, object] = {"scores": scores}
    if not answerable.all():
        for name, group in (("answerable", answerable), ("unanswerable", ~answerable)):
            if group.any():
                means = {"exact_match": float(hits[group].mean()), "f1": float(overlaps[group].mean())}
                results[name] = {"questions": int(group.sum()), **means}
    return results


def best_threshold(
    margins: Sequence[float], scores: Sequence[float], answerable: Sequence[bool]
) -> tuple[float, float]:
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
