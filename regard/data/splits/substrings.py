"""Splits of a file in which texts occur inside others, as the phrases of SST-2 occur inside its sentences.

    a gorgeous film , if a slow one      maximal: it occurs in no longer text of the file
    a gorgeous film                      inside
    gorgeous                             inside

Maximal texts are held out, and a text inside one of those is left out of train, so that nothing of a held-out text was
ever seen with a label. Words are separated by white space and compared in lower case; a text is inside another if
its words occur there in a row. Rows of words are compared by 64-bit hashes.
"""

from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

import numpy as np

from regard.data.splits.hashed import hash64

STEP = np.uint64(0x9E3779B97F4A7C15)  # odd, so that powers of it never vanish

CONTAINING = "containing_text"  # the value of data.split_by

LEFT_OUT = "inside a text that is held out"


def normalise(text: str) -> str:
    """A text as its words, by which texts are compared here."""
    return " ".join(text.casefold().split())


class WordHashes(NamedTuple):
    """Texts as the hashes of their words, end to end; rolling hashes of all rows of words follow from `sums`."""

    begins: np.ndarray  # of each text
    lengths: np.ndarray
    sums: np.ndarray  # cumulative sums of the words' hashes times STEP to the power of their position
    powers: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[str]) -> "WordHashes":
        index: dict[str, int] = {}
        rows = [[index.setdefault(word, len(index)) for word in text.split()] for text in texts]
        hashes = np.array([hash64(word) for word in index], np.uint64)
        lengths = np.array([len(row) for row in rows], np.int64)
        flat = np.concatenate([np.zeros(0, np.int64), *(np.array(row, np.int64) for row in rows)])
        powers = np.cumprod(np.full(len(flat) + 1, STEP))
        sums = np.append(np.uint64(0), np.cumsum(hashes[flat] * powers[: len(flat)] if index else flat, dtype="u8"))
        return cls(np.cumsum(lengths) - lengths, lengths, sums, powers)

    def row_hashes(self, begins: np.ndarray, length: int) -> np.ndarray:
        """The hashes of the rows of `length` words from these positions; they do not depend on the position."""
        return (self.sums[begins + length] - self.sums[begins]) * self.powers[len(self.powers) - 1 - begins]

    def inside(self, among: np.ndarray) -> np.ndarray:
        """For each text, whether it occurs in a longer one of those where `among` is True."""
        result = np.zeros(len(self.lengths), bool)
        for length in np.unique(self.lengths[self.lengths > 0]):
            texts = np.flatnonzero(self.lengths == length)
            longer = np.flatnonzero(among & (self.lengths > length))
            counts = self.lengths[longer] - length + 1
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = self.row_hashes(np.repeat(self.begins[longer], counts) + offsets, int(length))
            result[texts] = np.isin(self.row_hashes(self.begins[texts], int(length)), rows)
        return result


def assign_splits(texts: Iterable[str], choose: Callable[[Set[str]], Callable[[str], str]]) -> Callable[[str], str]:
    """A function from a text to its split, or to LEFT_OUT if it is inside a text that is held out.

    `choose` takes the maximal texts and returns the function from one of them to its split. Texts are normalised.
    """
    distinct = list(dict.fromkeys(texts))
    words = WordHashes.of(distinct)
    maximal = ~words.inside(np.ones(len(distinct), bool))
    split_of = choose({text for text, alone in zip(distinct, maximal, strict=True) if alone})
    splits = [split_of(text) if alone else "train" for text, alone in zip(distinct, maximal, strict=True)]
    lost = words.inside(np.array([split != "train" for split in splits], bool))
    table = {text: LEFT_OUT if out else split for text, out, split in zip(distinct, lost, splits, strict=True)}
    return table.__getitem__
