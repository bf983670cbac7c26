"""Held-out splits that are stratified by label, the same samples on every machine.

    Equal texts are one group. The groups of a label, in the order of their hashes: ┃ validation ┃ train … ┃ test ┃

The fraction is taken of each label's groups, and at least one is left to train on. A text that has several
labels in a file belongs to the alphabetically first of them. The order of the file does not matter; unlike in a
split that is held out by hash alone, a sample that is added may move another one at the border.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from regard.data.splits.hashed import hash64


class StratifiedSplit(NamedTuple):
    """The sorted hashes of the groups that are held out."""

    validation: np.ndarray
    test: np.ndarray

    def split_of(self, group: str) -> str:
        value = np.uint64(hash64(group))
        for name, hashes in self._asdict().items():
            index = int(np.searchsorted(hashes, value))
            if index < len(hashes) and hashes[index] == value:
                return name
        return "train"


def stratified_split(samples: Iterable[tuple[str, str]], validation: float, test: float) -> StratifiedSplit:
    """Which groups are held out, from (group, label) of all samples; 16 bytes of memory a sample."""
    hash_array, label_array, names = array("Q"), array("Q"), dict[str, int]()
    for group, label in samples:
        hash_array.append(hash64(group))
        label_array.append(names.setdefault(label, len(names)))
    rank = np.empty(len(names), int)
    rank[[names[name] for name in sorted(names)]] = np.arange(len(names))
    hashes, labels = np.array(hash_array, np.uint64), rank[np.array(label_array, int)]
    order = np.lexsort((labels, hashes))
    hashes, first = np.unique(hashes[order], return_index=True)
    labels = labels[order][first]
    order = np.argsort(labels, kind="stable")  # label by label, each in the order of the hashes
    sizes = np.bincount(labels, minlength=len(names))
    held_out = [hashes[:0]], [hashes[:0]]
    by_label = np.split(hashes[order], np.cumsum(sizes))[:-1]
    for groups, (low, high) in zip(by_label, shares(sizes, validation, test), strict=True):
        held_out[0].append(groups[:low])
        held_out[1].append(groups[len(groups) - high :])
    return StratifiedSplit(*(np.sort(np.concatenate(groups)) for groups in held_out))


def shares(sizes: Iterable[int], validation: float, test: float) -> Iterator[tuple[int, int]]:
    """How many of each label's groups are held out for validation and for test; at least one is left to train on.

    What rounding takes from a label is given to the next ones, so that rare labels together have their share.
    """
    owed_validation = owed_test = 0.0
    for size in sizes:
        owed_validation += validation * size
        owed_test += test * size
        low = min(round(owed_validation), max(0, size - 1))
        high = min(round(owed_test), max(0, size - 1 - low))
        owed_validation -= low
        owed_test -= high
        yield low, high
