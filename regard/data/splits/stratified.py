"""Held-out parts in which each label has its share, the same samples on every machine.

    Equal texts are one group. The groups of a label, in the order of their hashes: ┃ validation ┃ train … ┃ test ┃

The fraction is taken of each label's groups, and at least one is left to train on. A text that has several
labels in a file belongs to the first of them in the order of letters. The order of the file does not matter; unlike a
part that is held out by hash alone, a sample that is added may move one at the border.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from regard.data.splits.hashed import number_of


class Strata(NamedTuple):
    """The hashes of what is held out, in order."""

    validation: np.ndarray
    test: np.ndarray

    def part(self, group: str) -> str:
        value = np.uint64(number_of(group))
        if _holds(self.validation, value):
            return "validation"
        return "test" if _holds(self.test, value) else "train"


def _holds(values: np.ndarray, value: np.uint64) -> bool:
    place = int(np.searchsorted(values, value))
    return place < len(values) and values[place] == value


def strata(samples: Iterable[tuple[str, str]], validation: float, test: float) -> Strata:
    """Which groups are held out, of (group, label) of all samples; 16 bytes a sample are kept meanwhile."""
    hashes, labels, names = array("Q"), array("Q"), dict[str, int]()
    for group, label in samples:
        hashes.append(number_of(group))
        labels.append(names.setdefault(label, len(names)))
    rank = np.empty(len(names), int)
    rank[[names[name] for name in sorted(names)]] = np.arange(len(names))
    values, kinds = np.array(hashes, np.uint64), rank[np.array(labels, int)]
    order = np.lexsort((kinds, values))
    values, kinds = values[order], kinds[order]
    first = np.append(True, values[1:] != values[:-1])[: len(values)]
    values, kinds = values[first], kinds[first]
    order = np.argsort(kinds, kind="stable")  # label by label, each in the order of the hashes
    sizes = np.bincount(kinds, minlength=len(names))
    held: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    each = np.split(values[order], np.cumsum(sizes))[:-1]
    for own, (low, high) in zip(each, shares(sizes, validation, test), strict=True):
        held[0].append(own[:low])
        held[1].append(own[len(own) - high :])
    empty = np.zeros(0, np.uint64)
    return Strata(*(np.sort(np.concatenate([empty, *parts])) for parts in held))


def shares(sizes: Iterable[int], validation: float, test: float) -> Iterator[tuple[int, int]]:
    """How many of each label's groups are held out for validation and for test; one at least is left to train on.

    What rounding takes from a label the next ones get, so that rare labels have their share together.
    """
    owed = [0.0, 0.0]
    for size in sizes:
        owed = [owed[0] + validation * size, owed[1] + test * size]
        low = min(round(owed[0]), max(0, size - 1))
        high = min(round(owed[1]), max(0, size - 1 - low))
        owed = [owed[0] - low, owed[1] - high]
        yield low, high
