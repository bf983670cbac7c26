"""Tags of words → entity spans, and their precision, recall and F1 as conlleval counts them. Pure functions.

    IOB1     I-PER I-PER O I-LOC B-LOC       B only between two of a type
    IOB2     B-PER I-PER O B-LOC B-LOC
    BIOES    B-PER E-PER O S-LOC S-LOC
    BILOU    B-PER L-PER O U-LOC U-LOC       the same, with other letters

All are read by the rules of conlleval (Tjong Kim Sang & De Meulder 2003): a span begins at B and S, after E and S, and
where the type changes; I or E after O begins one too. A predicted span is right if its type and both its ends are.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from regard.metrics.bootstrap import SIGNATURE, bootstrap
from regard.metrics.classification import by_row, precision_recall_f1

TAG = re.compile(r"([BIESLU])-(.+)")
EQUIVALENT = {"L": "E", "U": "S"}  # last, unit
OUTSIDE = "O"


class Entity(NamedTuple):
    """A span of words of one type, first and last."""

    kind: str
    first: int
    last: int


def is_span_tag(tag: str) -> bool:
    """Whether a tag is O, or B-, I-, E-, S-, L- or U- and a type."""
    return tag == OUTSIDE or TAG.fullmatch(tag) is not None


def entities(tags: Iterable[str]) -> list[Entity]:
    """The spans of a sentence."""
    spans: list[Entity] = []
    first = 0
    open_kind = ""  # of the span that is open; empty if none is
    previous = OUTSIDE
    index = -1
    for index, tag in enumerate(tags):
        prefix, kind = _parse(tag)
        if open_kind and (previous in "ES" or prefix in "BSO" or kind != open_kind):
            spans.append(Entity(open_kind, first, index - 1))
            open_kind = ""
        if not open_kind and kind:
            first = index
            open_kind = kind
        previous = prefix
    return [*spans, Entity(open_kind, first, index)] if open_kind else spans


def count_unopened(tags: Iterable[str]) -> int:
    """How many words continue a span that none began: I or E after O, after an end, or after another type."""
    count = 0
    previous = (OUTSIDE, "")
    for tag in tags:
        prefix, kind = _parse(tag)
        count += prefix in "IE" and (previous[0] in "OES" or previous[1] != kind)
        previous = (prefix, kind)
    return count


def _parse(tag: str) -> tuple[str, str]:
    """A tag's prefix and type; anything but a span tag is outside."""
    match = TAG.fullmatch(tag)
    return (EQUIVALENT.get(match[1], match[1]), match[2]) if match else (OUTSIDE, "")


class Counts(NamedTuple):
    """Spans of the reference, spans predicted, and spans predicted right."""

    expected: int
    predicted: int
    right: int


def count(predicted: Sequence[str], expected: Sequence[str]) -> dict[str, Counts]:
    """The spans of one sentence, by type."""
    ours = set(entities(predicted))
    theirs = set(entities(expected))
    counters = [Counter(entity.kind for entity in spans) for spans in (theirs, ours, ours & theirs)]
    kinds = sorted({*counters[0], *counters[1]})
    return {kind: Counts(*(counter[kind] for counter in counters)) for kind in kinds}


def metrics(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall and F1 in percent, from counts (…, 3) in the order of Counts."""
    expected, predicted, right = np.moveaxis(counts, -1, 0)
    return precision_recall_f1(right, predicted, expected)


def f1(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> float:
    """The F1 of all spans of all sentences together, in percent."""
    rows = [counts for pair in zip(predicted, expected, strict=True) for counts in count(*pair).values()]
    return float(metrics(np.array([Counts(0, 0, 0), *rows]).sum(0))["f1"])


def report(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, object]:
    """Precision, recall and F1 of all spans with intervals over sentences, a row per type, and the words' accuracy."""
    pairs = list(zip(predicted, expected, strict=True))
    rows = [count(*pair) for pair in pairs]
    kinds = sorted({kind for row in rows for kind in row})
    table = np.array([[row.get(kind, Counts(0, 0, 0)) for kind in kinds] for row in rows])
    table = table.reshape(len(rows), len(kinds), 3)
    totals = table.sum(0)
    sums = table.sum(1)

    def statistic(rows: np.ndarray) -> dict[str, float]:
        return {name: float(value) for name, value in metrics(sums[rows].sum(0)).items()}

    hits = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
    return {
        "scores": bootstrap(statistic, len(sums), f"conlleval|{SIGNATURE}"),
        "by_type": by_row(kinds, {"entities": totals[:, 0], "found": totals[:, 1], **metrics(totals)}),
        "accuracy": 100.0 * hits / max(1, sum(map(len, expected))),
    }
