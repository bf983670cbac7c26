"""Incremental detokenization: text is returned as soon as later tokens cannot change it.

The results of `feed` and `finish` together are the result of `decode`.
"""

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from regard.text.byte_level import FALLBACK, to_bytes

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer


class Detokenizer(Protocol):
    """A text that is generated token by token."""

    def feed(self, ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


class ByteDetokenizer:
    """Byte-level pieces: a character is complete with its last byte."""

    def __init__(self, tokenizer: "Tokenizer"):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        pieces = (self._tokenizer.name(token) for token in ids if self._tokenizer.shows(token))
        return self._decoder.decode(b"".join(map(to_bytes, pieces)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer:
    """Pieces whose text depends on whether they are the first: they are decoded after the last one that was returned.

    A run of byte pieces is complete only when it has ended: one broken byte breaks all of them.
    """

    def __init__(self, tokenizer: "Tokenizer"):
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._returned = 0  # characters of the window's text

    def feed(self, ids: Iterable[int]) -> str:
        self._window += [token for token in ids if self._tokenizer.shows(token)]
        complete = len(self._window)
        while complete and FALLBACK.fullmatch(self._tokenizer.name(self._window[complete - 1])):
            complete -= 1
        new = self._new(self._window[:complete])
        if complete == len(self._window):
            # Keep the last token; one of spaces alone could be taken for the start of a text, and keeps its context.
            alone = self._tokenizer.decode(self._window[-1:])
            if alone.strip():
                self._window = self._window[-1:]
                self._returned = len(alone)
        return new

    def finish(self) -> str:
        return self._new(self._window)

    def _new(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids)
        new = text[self._returned :]
        self._returned = max(self._returned, len(text))
        return new
