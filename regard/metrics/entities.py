"""Precision, recall and F1 of entity spans, as conlleval counts them. Pure functions.

A span is right where its type and both of its borders are (Tjong Kim Sang & De Meulder 2003).
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.metrics.bootstrap import SIGNATURE, bootstrap
from regard.metrics.iob import entities


class Counts(NamedTuple):
    """Spans of the reference, spans predicted, and spans predicted right."""

    expected: int
    predicted: int
    right: int

    @property
    def precision(self) -> float:
        return 100.0 * self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return 100.0 * self.right / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        return 200.0 * self.right / (self.expected + self.predicted) if self.expected + self.predicted else 0.0

    def metrics(self) -> dict[str, float]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


def count(predicted: Sequence[str], expected: Sequence[str]) -> dict[str, Counts]:
    """The spans of one sentence, by type."""
    ours = set(entities(predicted))
    theirs = set(entities(expected))
    counters = [Counter(entity.kind for entity in spans) for spans in (theirs, ours, ours & theirs)]
    kinds = sorted({*counters[0], *counters[1]})
    return {kind: Counts(*(counter[kind] for counter in counters)) for kind in kinds}


def f1(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> float:
    """The F1 of all spans of all sentences together, in percent."""
    rows = [counts for pair in zip(predicted, expected, strict=True) for counts in count(*pair).values()]
    return Counts(*(sum(row[column] for row in rows) for column in range(3))).f1


def report(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, object]:
    """Precision, recall and F1 of all spans with intervals over sentences, a row per type, and the words' accuracy."""
    pairs = list(zip(predicted, expected, strict=True))
    rows = [count(*pair) for pair in pairs]
    kinds = sorted({kind for row in rows for kind in row})
    table = np.array([[row.get(kind, Counts(0, 0, 0)) for kind in kinds] for row in rows])
    table = table.reshape(len(rows), len(kinds), 3)
    by_kind = {}
    for index, kind in enumerate(kinds):
        counts = Counts(*table[:, index].sum(0).tolist())
        by_kind[kind] = {"entities": counts.expected, "found": counts.predicted, **counts.metrics()}
    sums = table.sum(1)
    hits = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    return {
        "scores": bootstrap(
            lambda rows: Counts(*sums[rows].sum(0).tolist()).metrics(), len(sums), f"conlleval|{SIGNATURE}"
        ),
        "by_kind": by_kind,
        "accuracy": 100.0 * hits / max(1, sum(map(len, expected))),
    }
