"""Parts of a file in which texts stand inside others, as the phrases of SST-2 stand inside its sentences.

    a gorgeous film , if a slow one      whole: it stands in no longer text of the file
    a gorgeous film                      inside
    gorgeous                             inside

Whole texts are held out, and a text that stands inside one of those is left out of train, so that nothing of a held-out
text was ever seen with a label. Words are what white space divides, in small letters; a text is inside another where
its words stand there in a row. Rows of words are told apart by 64 bits.
"""

from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

import numpy as np

from regard.data.splits.hashed import number_of

STEP = np.uint64(0x9E3779B97F4A7C15)  # odd, so that powers of it never vanish

CONTAINING = "containing_text"  # what data.split_by says for it

LEFT_OUT = "inside a text that is held out"


def plain(text: str) -> str:
    """A text as its words, by which texts are equal here."""
    return " ".join(text.casefold().split())


class Words(NamedTuple):
    """Texts as the numbers of their words, end to end, and where each begins; `sums` has all rows' hashes in it."""

    begins: np.ndarray
    lengths: np.ndarray
    sums: np.ndarray  # the words' numbers times STEP to the power of their place, added up from the first on
    powers: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Words":
        known: dict[str, int] = {}
        rows = [[known.setdefault(word, len(known)) for word in text.split()] for text in texts]
        numbers = np.array([number_of(word) for word in known], np.uint64)
        lengths = np.array([len(row) for row in rows], np.int64)
        flat = np.concatenate([np.zeros(0, np.int64), *(np.array(row, np.int64) for row in rows)])
        powers = np.cumprod(np.full(len(flat) + 1, STEP))
        sums = np.append(np.uint64(0), np.cumsum(numbers[flat] * powers[: len(flat)] if known else flat, dtype="u8"))
        return cls(np.cumsum(lengths) - lengths, lengths, sums, powers)

    def hashes(self, begins: np.ndarray, length: int) -> np.ndarray:
        """Of the rows of so many words that begin there: the same wherever a row stands."""
        return (self.sums[begins + length] - self.sums[begins]) * self.powers[len(self.powers) - 1 - begins]

    def inside(self, among: np.ndarray) -> np.ndarray:
        """For each text, whether it stands in a longer one of those where `among` is True."""
        found = np.zeros(len(self.lengths), bool)
        for length in np.unique(self.lengths[self.lengths > 0]):
            own = np.flatnonzero(self.lengths == length)
            longer = np.flatnonzero(among & (self.lengths > length))
            counts = self.lengths[longer] - length + 1
            places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = self.hashes(np.repeat(self.begins[longer], counts) + places, int(length))
            found[own] = np.isin(self.hashes(self.begins[own], int(length)), rows)
        return found


def placed(texts: Iterable[str], choose: Callable[[Set[str]], Callable[[str], str]]) -> Callable[[str], str]:
    """What tells the part of each text: LEFT_OUT for one inside a text that is held out.

    `choose` is given the whole texts, and gives what tells the part of one. Texts are `plain` already.
    """
    distinct = list(dict.fromkeys(texts))
    words = Words.of(distinct)
    whole = ~words.inside(np.ones(len(distinct), bool))
    part = choose({text for text, alone in zip(distinct, whole, strict=True) if alone})
    parts = [part(text) if alone else "train" for text, alone in zip(distinct, whole, strict=True)]
    held = np.array([each != "train" for each in parts], bool)
    lost = words.inside(held)
    found = {text: LEFT_OUT if out else each for text, out, each in zip(distinct, lost, parts, strict=True)}
    return found.__getitem__
