"""Bytes as a vocabulary writes them: GPT-2's one visible character a byte, or <0xE2> where characters are the rule."""

import codecs
import re

FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte that no piece covers, among pieces of characters


def _letters() -> list[str]:
    """The character that stands for each byte (Radford et al. 2019): its own where visible, else one from 256 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(number) for number in range(0x100, 0x200))
    return [chr(byte) if byte in visible else next(others) for byte in range(256)]


BYTE_TO_UNICODE = _letters()

BYTES = {letter: byte for byte, letter in enumerate(BYTE_TO_UNICODE)}


def to_bytes(piece: str) -> bytes:
    """The bytes that a byte-level piece stands for; one of other characters, an added token, is text as it is."""
    try:
        return bytes(BYTES[letter] for letter in piece)
    except KeyError:
        return piece.encode()


def readable(raw: bytes) -> str:
    """Whole characters as text; a byte of one that is cut as ⟨e2⟩."""
    return raw.decode("utf-8", errors="regard.readable")


def _in_brackets(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"⟨{byte:02x}⟩" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("regard.readable", _in_brackets)
