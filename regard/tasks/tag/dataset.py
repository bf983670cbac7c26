"""Tagged sentences: prepared arrays, memory-mapped, and batches of them. tagging.py writes them.

    [CLS] Ada love ##lace wrote [SEP]
           B    I     ·     O            the first piece of a word carries its tag

cache/<key>/   sentence.tokens, firsts.places (each word's first token), tags.numbers, words.bytes (JSON),
               windows.table (sentence, begin, end, word, until), windows.lengths, tags.json

A sentence that is too long is read in windows of whole words that overlap by half. Each word is learnt and scored once:
`word` … `until` are those that have most context in this window, on the side where they have less of it.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.cache import read_facts
from regard.data.ragged import Ragged
from regard.data.sampler import BatchOptions, shares
from regard.data.window_files import WindowFiles
from regard.layers.inputs import Ids, TokenBatch
from regard.layers.pytree import select_ragged, select_rows, to_device
from regard.text.special_tokens import FramedRow, SpecialTokens, padded


class Window(NamedTuple):
    """Tokens begin … end of a sentence, of which the words `word` … `until` count."""

    sentence: int
    begin: int
    end: int
    word: int
    until: int

    def row(self, frame: SpecialTokens, tokens: Ids, firsts: Ids) -> tuple[FramedRow, np.ndarray]:
        """Its row, of the sentence's tokens and its words' first ones, and the places in it of the words that count."""
        placed = frame.place(tokens[self.begin : self.end])
        return placed, np.asarray(firsts[self.word : self.until]) - self.begin + placed.begins[0]


class TaggedBatch(NamedTuple):
    """Sentences, or windows of them, and the tags of the words that count."""

    text: TokenBatch
    at: Tensor  # (batch, length): True on the first piece of a word that counts
    tags: Tensor  # (words): the numbers of their tags, row by row
    index: Tensor  # (batch): the windows' numbers

    def to(self, device: torch.device | str) -> "TaggedBatch":
        return to_device(self, device)

    def rows(self, some: slice) -> "TaggedBatch":
        """Some of its windows."""
        return TaggedBatch(
            select_rows(self.text, some), self.at[some], select_ragged(self.at, self.tags, some), self.index[some]
        )


class TaggedCorpus(WindowFiles):
    """Prepared sentences, memory-mapped."""

    def __init__(self, folder: Path, frame: SpecialTokens, padding: int):
        facts = read_facts(folder / "tags.json")
        super().__init__(folder, facts, facts["windows"], frame, padding)
        self._tokens = Ragged(folder / "sentence.tokens", facts["dtype"])
        self._firsts = Ragged(folder / "firsts.places", "int32")
        self._tags = Ragged(folder / "tags.numbers", "uint16")
        self._words = Ragged(folder / "words.bytes")

    @property
    def whole(self) -> bool:
        rows = [each.whole(self.sentences) for each in (self._tokens, self._firsts, self._tags, self._words)]
        return all(rows) and super().whole

    @property
    def sentences(self) -> int:
        return self.report.kept

    def words(self, sentence: int) -> list[str]:
        return json.loads(self._words.text(sentence))

    def tags(self, sentence: int) -> np.ndarray:
        return self._tags[sentence]

    def window(self, number: int) -> Window:
        return Window(*self._table[number].tolist())

    def row(self, number: int) -> tuple[FramedRow, np.ndarray, np.ndarray]:
        """A window's row, the places in it of the words that count, and their tags."""
        window = self.window(number)
        row = window.row(self.frame, self._tokens[window.sentence], self._firsts[window.sentence])
        return *row, self._tags[window.sentence][window.word : window.until]


def collate(corpus: TaggedCorpus, numbers: Sequence[int]) -> TaggedBatch:
    """These windows as one batch."""
    rows = [corpus.row(number) for number in numbers]
    text = padded([placed for placed, _, _ in rows], corpus.padding)
    at = marked(text, [places for _, places, _ in rows])
    tags = np.concatenate([tags for _, _, tags in rows]).astype(np.int64)
    return TaggedBatch(text, at, torch.from_numpy(tags), torch.tensor(list(numbers)))


def marked(text: TokenBatch, places: Sequence[np.ndarray]) -> Tensor:
    """True at these places of each row."""
    at = torch.zeros(text.tokens.shape, dtype=torch.bool)
    for number, each in enumerate(places):
        at[number, torch.from_numpy(each.astype(np.int64))] = True
    return at


def stream(
    corpus: TaggedCorpus, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[TaggedBatch]:
    """Batches without end, from the rank's own number `start`: its k-th is batch k·world + rank of all."""
    for samples in shares(corpus, options, start, rank, world):
        yield collate(corpus, samples)
