"""Tokens → text: bytes in a vocabulary, and incremental detokenization while tokens are generated.

A byte is one visible character (GPT-2), or <0xE2> in a vocabulary of characters. Text is returned as soon as later
tokens cannot change it; the results of `feed` and `finish` together are the result of `decode`.
"""

import codecs
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte that no piece covers, among pieces of characters


def _bytes_to_unicode() -> list[str]:
    """The character that represents each byte (Radford et al. 2019): its own if visible, else one from 256 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in visible else next(others) for byte in range(256)]


BYTE_TO_UNICODE = _bytes_to_unicode()

UNICODE_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_UNICODE)}


def to_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece; an added token, which has other characters, is text as it is."""
    try:
        return bytes(UNICODE_TO_BYTE[character] for character in piece)
    except KeyError:
        return piece.encode()


def readable(raw: bytes) -> str:
    """Complete characters as text; a byte of an incomplete one as ⟨e2⟩."""
    return raw.decode("utf-8", errors="regard.readable")


def _in_brackets(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"⟨{byte:02x}⟩" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("regard.readable", _in_brackets)


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


Detokenizer = ByteDetokenizer | PieceDetokenizer  # of a text that is generated token by token
