"""Questions that are asked now: windows over their texts in memory, which are read as prepared ones are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.files import is_text
from regard.errors import UserError
from regard.tasks.answer.dataset import cut, trimmed
from regard.tasks.answer.windows import ABSENT, Window
from regard.text.special_tokens import FramedRow, pair_frame
from regard.text.vocabulary import Tokenizer


class Ask(NamedTuple):
    """A question and the text that it is asked of."""

    question: str
    context: str


class Asking:
    """Windows over the texts of some questions; a text that is asked of several times is kept once."""

    def __init__(self, asks: Sequence[Ask], tokenizer: Tokenizer, max_length: int, stride: int = 0, before: int = 0):
        """A window begins each `stride` tokens, by default each half of the longest. So many came before these."""
        self.tokenizer, self.frame, self.padding = tokenizer, pair_frame(tokenizer), max(tokenizer.pad, 0)
        _check(asks, before)
        self._asks, self._before, texts = list(asks), before, list(dict.fromkeys(ask.context for ask in asks))
        encoded = tokenizer.inner.encode_batch(texts, add_special_tokens=False)
        self._tokens = {text: each.ids for text, each in zip(texts, encoded, strict=True)}
        self._spans = {text: trimmed(each.offsets, text) for text, each in zip(texts, encoded, strict=True)}
        self._questions = tokenizer.encode_many([ask.question for ask in asks])
        self._windows: list[Window] = []
        self._owned: list[range] = []
        for number in range(len(self._asks)):
            self._cut(number, max_length, stride or max(1, max_length // 2))
        self.lengths = np.array([self._length(window) for window in self._windows], np.int32)

    def _cut(self, number: int, max_length: int, stride: int) -> None:
        size, first = len(self._questions[number]), len(self._windows)
        room = max_length - self.frame.size - size
        if room < stride:
            most = max_length - self.frame.size - stride
            raise UserError(
                f"input {self._before + number + 1}: its question has {size} tokens, at most {most} leave room for its "
                f"text in a window of {max_length}: {self._asks[number].question!r:.60}…"
            )
        for begin, end in cut(len(self._tokens[self._asks[number].context]), room, stride):
            self._windows.append(Window(number, begin, end, ABSENT, ABSENT))
        self._owned.append(range(first, len(self._windows)))

    def _length(self, window: Window) -> int:
        return self.frame.size + len(self._questions[window.question]) + window.end - window.begin

    def __len__(self) -> int:
        return len(self._windows)

    def window(self, number: int) -> Window:
        return self._windows[number]

    def windows_of(self, question: int) -> range:
        return self._owned[question]

    def spans(self, question: int) -> np.ndarray:
        return self._spans[self._asks[question].context]

    def row(self, number: int) -> FramedRow:
        window = self._windows[number]
        context = self._tokens[self._asks[window.question].context]
        return self.frame.place(self._questions[window.question], context[window.begin : window.end])


def _check(asks: Sequence[Ask], before: int) -> None:
    for number, ask in enumerate(asks, before + 1):
        for name, text in zip(Ask._fields, ask, strict=True):
            if not is_text(text):
                raise UserError(f"input {number}: its {name} is not text: {text!r:.60}")
            if not text.strip():
                raise UserError(f"input {number}: its {name} is empty")
