"""Answers that stand in a text: the best spans of its windows, and how SQuAD scores them. Pure functions.

The score of a span is the logit of its first token plus that of its last (Devlin et al. 2019, section 4.2); that of no
answer is the same of [CLS], the least of all windows (section 4.3). Rajpurkar et al. 2016, section 6.1, and 2018.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from regard.metrics.bootstrap import SIGNATURE, bootstrap_mean
from regard.metrics.squad import exact, f1

# ── the best spans ───────────────────────────────────────────────────────────────────────────────────────────────────


class Seen(NamedTuple):
    """What a network said of one window: logits of its row's places, and which of them are tokens of the text."""

    first: np.ndarray
    last: np.ndarray
    begin: int  # where in the row tokens of the text begin,
    end: int  # and end
    offset: int  # which token of the text stands at `begin`


class Span(NamedTuple):
    """Tokens of a text, first and last."""

    score: float
    first: int
    last: int


class Found(NamedTuple):
    """What may be the answer, best first; `nothing` is the score that there is none."""

    spans: list[Span]
    nothing: float

    @property
    def margin(self) -> float:
        """By how much no answer is better than the best."""
        return self.nothing - self.spans[0].score if self.spans else float("inf")


def best_spans(seen: Seen, best: int = 20, longest: int = 30) -> list[Span]:
    """A window's spans of at most `longest` tokens of the text, best first: the last is not before the first."""
    scores = _scores(seen, longest).ravel()
    some = np.argpartition(-scores, best - 1)[:best] if len(scores) > best else np.arange(len(scores))
    some = some[np.lexsort((some, -scores[some]))]
    found = [(float(scores[place]), *divmod(int(place), longest)) for place in some if np.isfinite(scores[place])]
    return [Span(score, seen.offset + begin, seen.offset + begin + more) for score, begin, more in found]


def _scores(seen: Seen, longest: int) -> np.ndarray:
    """Of each first token of the text, and so many more behind it (tokens, longest)."""
    first, last = (np.asarray(each, float)[seen.begin : seen.end] for each in (seen.first, seen.last))
    behind = np.append(last, np.full(longest - 1, -np.inf))
    return first[:, None] + sliding_window_view(behind, longest)


def spans_apart(seen: Seen, best: int = 20, longest: int = 30) -> list[Span]:
    """A window's best spans no two of which overlap, best first."""
    scores, found = _scores(seen, longest).copy(), list[Span]()
    first = np.arange(len(scores))[:, None]
    last = first + np.arange(longest)
    while len(found) < best and scores.size and np.isfinite(score := scores.max()):
        begin, more = divmod(int(scores.argmax()), longest)
        found.append(Span(float(score), seen.offset + begin, seen.offset + begin + more))
        scores[(first <= begin + more) & (last >= begin)] = -np.inf
    return found


def best_of(windows: Iterable[Seen], best: int = 20, longest: int = 30) -> Found:
    """The best spans of all of a question's windows; one that several windows hold counts with its best score."""
    found: dict[tuple[int, int], Span] = {}
    nothing = float("inf")
    for seen in windows:
        nothing = min(nothing, _nothing(seen))
        for span in best_spans(seen, best, longest):
            place = span.first, span.last
            found[place] = max(span, found.get(place, span))
    return Found(sorted(found.values(), key=_rank)[:best], nothing)


def best_apart(windows: Iterable[Seen], best: int = 20, longest: int = 30) -> Found:
    """The best spans of all of a question's windows, no two of which overlap: places, not borders, to choose from."""
    windows = list(windows)
    kept: list[Span] = []
    for span in sorted((span for seen in windows for span in spans_apart(seen, best, longest)), key=_rank):
        if all(span.first > each.last or span.last < each.first for each in kept):
            kept.append(span)
    return Found(kept[:best], min(map(_nothing, windows), default=float("inf")))


def _nothing(seen: Seen) -> float:
    return float(seen.first[0]) + float(seen.last[0])


def _rank(span: Span) -> tuple[float, int, int]:
    return -span.score, span.first, span.last


class Told(NamedTuple):
    """An answer with its place among the text's characters; no text is no answer. `score` is its probability."""

    text: str
    score: float
    start: int
    end: int


def tell(found: Found, spans: np.ndarray, context: str, threshold: float | None = None) -> list[Told]:
    """What was found as text, best first; with a threshold "no answer" is one of them.

    It comes first where it is better than the best span by more than the threshold. The probabilities are a softmax
    over all that is told, which nothing has calibrated.
    """
    rows = [(span.score, int(spans[span.first, 0]), int(spans[span.last, 1])) for span in found.spans]
    if threshold is not None or not rows:
        rows.append((found.nothing, 0, 0))
    scores = np.array([score for score, _, _ in rows])
    weights = np.exp(scores - scores.max())
    chances = weights / weights.sum()
    told = [
        Told(context[start:end], float(chance), start, end)
        for (_, start, end), chance in zip(rows, chances, strict=True)
    ]
    if threshold is not None and found.margin > threshold:
        return [told[-1], *told[:-1]]
    return told


def report(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, object]:
    """Exact match and F1 in percent with intervals; where some have no answer, also of those and the others apart."""
    hits = 100.0 * np.array([exact(answer, gold) for answer, gold in zip(answers, golds, strict=True)])
    shared = 100.0 * np.array([f1(answer, gold) for answer, gold in zip(answers, golds, strict=True)])
    answered = np.array([bool(gold) for gold in golds])
    signature = f"squad|{SIGNATURE}"
    scores = [bootstrap_mean("exact_match", hits, signature), bootstrap_mean("f1", shared, signature)]
    found: dict[str, object] = {"scores": scores}
    if not answered.all():
        for name, some in (("answerable", answered), ("unanswerable", ~answered)):
            if some.any():
                means = {"exact_match": float(hits[some].mean()), "f1": float(shared[some].mean())}
                found[name] = {"questions": int(some.sum()), **means}
    return found


def best_threshold(
    margins: Sequence[float], scores: Sequence[float], answerable: Sequence[bool]
) -> tuple[float, float]:
    """The margin beyond which to say nothing that gives the best mean score, and that score in percent.

    `scores` are those of each question's best span; to say nothing is right where there is nothing to say.
    """
    order = np.argsort(margins, kind="stable")
    margin, score = np.asarray(margins, float)[order], np.asarray(scores, float)[order]
    silent = ~np.asarray(answerable, bool)[order]
    gains = np.concatenate([[0.0], np.cumsum(np.where(silent, -1.0, score))])  # of answering the first k
    ends = np.flatnonzero(np.append(margin[1:] != margin[:-1], True)) + 1  # equal margins go together
    tried = np.concatenate([[0], ends])
    most = int(tried[np.argmax(gains[tried])])
    threshold = float(margin[most - 1]) if most else float(np.nextafter(margin[0], -np.inf))
    return threshold, 100.0 * float(silent.sum() + gains[most]) / len(margin)
