"""Bytes in a vocabulary: GPT-2's one visible character a byte, or <0xE2> in vocabularies of characters."""

import codecs
import re

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
