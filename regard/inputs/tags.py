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
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.inputs.batch import BatchOptions, Sequences, order
from regard.inputs.frames import Frame, Placed, padded
from regard.inputs.prepared import Report, read_facts
from regard.inputs.ragged import Ragged


class Window(NamedTuple):
    """Tokens begin … end of a sentence, of which the words `word` … `until` count."""

    sentence: int
    begin: int
    end: int
    word: int
    until: int


class Tagged(NamedTuple):
    """Sentences, or windows of them, and the tags of the words that count."""

    text: Sequences
    at: Tensor  # (batch, length): True on the first piece of a word that counts
    tags: Tensor  # (words): the numbers of their tags, row by row
    index: Tensor  # (batch): the windows' numbers

    def to(self, device: torch.device | str) -> "Tagged":
        return Tagged(self.text.to(device), self.at.to(device), self.tags.to(device), self.index.to(device))


class TaggedCorpus:
    """Prepared sentences, memory-mapped."""

    def __init__(self, folder: Path, frame: Frame, padding: int):
        facts = read_facts(folder / "tags.json")
        self.report = Report.of(facts["report"])
        self.hashes: dict[str, str] = facts["hashes"]
        self.frame, self.padding = frame, padding
        self._windows: int = facts["windows"]
        self._tokens = Ragged(folder / "sentence.tokens", facts["dtype"])
        self._firsts = Ragged(folder / "firsts.places", "int32")
        self._tags = Ragged(folder / "tags.numbers", "uint16")
        self._words = Ragged(folder / "words.bytes")
        self._table = Ragged(folder / "windows.table", "int32")
        self.lengths = np.memmap(folder / "windows.lengths", dtype=np.int32, mode="r")

    @property
    def whole(self) -> bool:
        """Whether no file was cut."""
        rows = [each.whole(self.sentences) for each in (self._tokens, self._firsts, self._tags, self._words)]
        return all(rows) and self._table.whole(self._windows) and len(self.lengths) == self._windows

    @property
    def source_lengths(self) -> np.memmap:
        return self.lengths

    @property
    def target_lengths(self) -> np.memmap:
        return self.lengths

    def __len__(self) -> int:
        return self._windows

    @property
    def sentences(self) -> int:
        return self.report.kept

    def words(self, sentence: int) -> list[str]:
        return json.loads(self._words.text(sentence))

    def tags(self, sentence: int) -> np.ndarray:
        return self._tags[sentence]

    def window(self, number: int) -> Window:
        return Window(*self._table[number].tolist())

    def row(self, number: int) -> tuple[Placed, np.ndarray, np.ndarray]:
        """A window's row, the places in it of the words that count, and their tags."""
        window = self.window(number)
        placed = self.frame.place(self._tokens[window.sentence][window.begin : window.end])
        some = slice(window.word, window.until)
        places = self._firsts[window.sentence][some] - window.begin + placed.begins[0]
        return placed, places, self._tags[window.sentence][some]


def collate(corpus: TaggedCorpus, numbers: Sequence[int]) -> Tagged:
    """These windows as one batch."""
    rows = [corpus.row(number) for number in numbers]
    text = padded([placed for placed, _, _ in rows], corpus.padding)
    at = torch.zeros(text.tokens.shape, dtype=torch.bool)
    for number, (_, places, _) in enumerate(rows):
        at[number, torch.from_numpy(places.astype(np.int64))] = True
    tags = np.concatenate([tags for _, _, tags in rows]).astype(np.int64)
    return Tagged(text, at, torch.from_numpy(tags), torch.tensor(list(numbers)))


def stream(
    corpus: TaggedCorpus, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Tagged]:
    """Batches without end, from the rank's own number `start`: its k-th is batch k·world + rank of all."""
    for samples in islice(order(corpus, options).numbers(start * world), rank, None, world):
        yield collate(corpus, samples.tolist())
