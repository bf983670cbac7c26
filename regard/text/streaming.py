"""Text that grows token by token: what is certain is given at once, the rest is held back.

All that `feed` and `finish` give together is what `decode` gives at once.
"""

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from regard.text.byte_level import FALLBACK, to_bytes

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer


class Growing(Protocol):
    """A text being written."""

    def feed(self, ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


class ByteDetokenizer:
    """Byte-level pieces: a character is certain with its last byte."""

    def __init__(self, tokenizer: "Tokenizer"):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        seen = (self._tokenizer.name(token) for token in ids if self._tokenizer.shows(token))
        return self._decoder.decode(b"".join(map(to_bytes, seen)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer:
    """Pieces whose text depends on whether they are the first: they are decoded behind the last one that was shown.

    A run of byte pieces is certain only when it has ended: one broken byte breaks all of them.
    """

    def __init__(self, tokenizer: "Tokenizer"):
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0  # characters of the window's text

    def feed(self, ids: Iterable[int]) -> str:
        self._window += [token for token in ids if self._tokenizer.shows(token)]
        certain = len(self._window)
        while certain and FALLBACK.fullmatch(self._tokenizer.name(self._window[certain - 1])):
            certain -= 1
        new = self._new(self._window[:certain])
        if certain == len(self._window):
            self._forget()
        return new

    def finish(self) -> str:
        return self._new(self._window)

    def _new(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids)
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new

    def _forget(self) -> None:
        """All but the last token; one of spaces alone could be taken for the head of a text, and stays company."""
        alone = self._tokenizer.decode(self._window[-1:])
        if alone.strip():
            self._window, self._given = self._window[-1:], len(alone)
