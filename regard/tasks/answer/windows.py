"""Windows over texts that hold the answers to questions: prepared arrays, memory-mapped, and batches of them.

    [CLS] question [SEP] tokens 0 … 255 of the text   [SEP]
    [CLS] question [SEP] tokens 128 … 383 of the text [SEP]      a window begins each `stride` tokens

cache/<key>/   context.tokens, spans.places (each token's first character, and that behind its last), texts.bytes
               question.tokens, facts.bytes (JSON: id, question, answers, its text and its windows)
               windows.table (question, begin, end, first, last), windows.lengths
               windows.json (counts, the report, the files' hashes)

`first` and `last` are the answer's tokens in the text, ABSENT where the window does not hold all of them; a network is
then to point at the first token of the row ([CLS]). Devlin et al. 2019, sections 4.2 and 4.3. answers.py writes them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.cache import read_facts
from regard.data.ragged import Ragged
from regard.data.sampler import BatchOptions, shares
from regard.data.window_files import WindowFiles
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import to_device
from regard.tasks.answer.files import Gold, Question
from regard.text.special_tokens import FramedRow, SpecialTokens, padded

ABSENT = -1  # no token of this window


class Window(NamedTuple):
    """Tokens `begin` … `end` of the text that question number `question` asks of; the answer's tokens, or ABSENT."""

    question: int
    begin: int
    end: int
    first: int
    last: int


class Asked(NamedTuple):
    """Windows as a network reads them, and the places in their rows that it is to point at."""

    text: TokenBatch
    first: Tensor  # (batch): of the answer's first token; 0 where the window does not hold it
    last: Tensor  # (batch)
    context: Tensor  # (batch, 2): where the window's tokens of the text begin and end
    index: Tensor  # (batch): the windows' numbers

    def to(self, device: torch.device | str) -> "Asked":
        return to_device(self, device)


class Windowed(Protocol):
    """Questions whose texts are cut into windows: what a batch of them is made from."""

    padding: int

    @property
    def lengths(self) -> np.ndarray: ...

    def window(self, number: int) -> Window: ...

    def windows_of(self, question: int) -> range: ...

    def row(self, number: int) -> FramedRow: ...


class Windows(WindowFiles):
    """Prepared questions, memory-mapped."""

    def __init__(self, folder: Path, frame: SpecialTokens, padding: int):
        facts = read_facts(folder / "windows.json")
        self._counts: dict[str, int] = facts["counts"]
        super().__init__(folder, facts, self._counts["windows"], frame, padding)
        self._contexts = Ragged(folder / "context.tokens", facts["dtype"])
        self._spans = Ragged(folder / "spans.places", "int32")
        self._texts = Ragged(folder / "texts.bytes")
        self._questions = Ragged(folder / "question.tokens", facts["dtype"])
        self._facts = Ragged(folder / "facts.bytes")

    @property
    def whole(self) -> bool:
        contexts, questions = self._counts["contexts"], self._counts["questions"]
        fits = [each.whole(contexts) for each in (self._contexts, self._spans, self._texts)]
        fits += [self._questions.whole(questions), self._facts.whole(questions)]
        return all(fits) and super().whole

    @property
    def questions(self) -> int:
        return self._counts["questions"]

    @property
    def unanswered(self) -> int:
        """How many questions their texts say nothing of."""
        return self._counts["unanswered"]

    def window(self, number: int) -> Window:
        return Window(*self._table[number].tolist()[:5])

    def windows_of(self, question: int) -> range:
        """The numbers of a question's windows."""
        first, count = self._record(question)["windows"]
        return range(first, first + count)

    def question(self, number: int) -> Question:
        facts = self._record(number)
        golds = tuple(Gold(text, start) for text, start in facts["answers"])
        context = self._texts.text(facts["context"])
        return Question(facts["id"], facts["question"], context, golds, "", facts["place"])

    def spans(self, question: int) -> np.ndarray:
        """The first character of each token of a question's text, and that behind its last: (tokens, 2)."""
        return self._spans[self._record(question)["context"]].reshape(-1, 2)

    def row(self, number: int) -> FramedRow:
        window = self.window(number)
        context = self._contexts[self._record(window.question)["context"]]
        return self.frame.place(self._questions[window.question], context[window.begin : window.end])

    def _record(self, question: int) -> dict:
        return json.loads(self._facts.text(question))


def collate(windows: Windowed, numbers: Sequence[int]) -> Asked:
    """These windows as one batch."""
    found, rows = [windows.window(number) for number in numbers], [windows.row(number) for number in numbers]
    begins = [row.begins[1] for row in rows]
    context = [[begin, begin + window.end - window.begin] for begin, window in zip(begins, found, strict=True)]
    wanted = [
        (0, 0) if window.first == ABSENT else (begin + window.first - window.begin, begin + window.last - window.begin)
        for begin, window in zip(begins, found, strict=True)
    ]
    first, last = torch.tensor(wanted, dtype=torch.int64).T
    return Asked(padded(rows, windows.padding), first, last, torch.tensor(context), torch.tensor(list(numbers)))


def stream(windows: Windows, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[Asked]:
    """Batches without end, from the rank's own number `start`: its k-th is batch k·world + rank of all."""
    for samples in shares(windows, options, start, rank, world):
        yield collate(windows, samples)
