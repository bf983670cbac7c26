"""How well names are found in sentences: precision, recall and F1 of spans, as conlleval counts them. Pure functions.

A span is right where its kind and both of its ends are (Tjong Kim Sang & De Meulder 2003).
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.metrics.bleu import Score, resampled
from regard.metrics.iob import entities


class Counts(NamedTuple):
    """Spans that were to be found, that were found, and that were found right."""

    wanted: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        return 100.0 * self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return 100.0 * self.right / self.wanted if self.wanted else 0.0

    @property
    def f1(self) -> float:
        return 200.0 * self.right / (self.wanted + self.found) if self.wanted + self.found else 0.0


def count(found: Sequence[str], wanted: Sequence[str]) -> dict[str, Counts]:
    """One sentence's spans, by kind."""
    ours, theirs = set(entities(found)), set(entities(wanted))
    per = [Counter(entity.kind for entity in some) for some in (theirs, ours, ours & theirs)]
    return {kind: Counts(*(each[kind] for each in per)) for kind in sorted({*per[0], *per[1]})}


def f1(found: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> float:
    """The F1 of all spans of all sentences together, in percent."""
    rows = [each for ours, theirs in zip(found, wanted, strict=True) for each in count(ours, theirs).values()]
    return Counts(*(sum(row[place] for row in rows) for place in range(3))).f1


def report(found: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, object]:
    """Precision, recall and F1 of all spans with intervals over sentences, a row a kind, and the words' accuracy."""
    rows = [count(ours, theirs) for ours, theirs in zip(found, wanted, strict=True)]
    kinds = sorted({kind for row in rows for kind in row})
    table = np.array([[row.get(kind, Counts(0, 0, 0)) for kind in kinds] for row in rows]).reshape(
        len(rows), len(kinds), 3
    )
    sums = table.sum(1)
    words = sum(map(len, wanted))
    hits = sum(a == b for ours, theirs in zip(found, wanted, strict=True) for a, b in zip(ours, theirs, strict=True))
    return {
        "scores": [_score(name, sums) for name in ("precision", "recall", "f1")],
        "by_kind": {kind: _row(Counts(*table[:, number].sum(0).tolist())) for number, kind in enumerate(kinds)},
        "accuracy": 100.0 * hits / max(1, words),
    }


def _score(name: str, sums: np.ndarray) -> Score:
    return resampled(name, lambda some: getattr(Counts(*sums[some].sum(0).tolist()), name), len(sums), "conlleval|")


def _row(counts: Counts) -> dict[str, float]:
    figures = {name: getattr(counts, name) for name in ("precision", "recall", "f1")}
    return {"entities": counts.wanted, "found": counts.found, **figures}
