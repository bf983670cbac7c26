"""Raw text of any size, in chunks: memory does not grow with a file, and tokens do not depend on the chunks.

… the end of a line.⏎|The next line …     after a line break with words on both sides,
… a word| and another …                   else before a space with words on both sides,
…                                         else, once a chunk has grown to the bound, anywhere

book.txt            one document, without an end
books/*.txt         a document each
news.jsonl .tsv .csv  a document a row
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from regard.config.options import DocumentOptions
from regard.data.files import expand, not_utf8, rows, suffix, unpacked
from regard.data.splits.hashed import file_of, fractions, own_file, split_of
from regard.errors import UserError

CHUNK_BYTES = 1 << 16  # read at once

MAX_CHUNK = 1 << 22  # characters: a chunk without a position to split it grows to here

TRAINER_CHUNK = 1 << 12  # bytes that a tokenizer is trained on at once

BYTE_ORDER_MARK = "\ufeff"


class Document(NamedTuple):
    """A text: its location, and a function that yields its chunks, which together are the text."""

    location: str
    chunks: Callable[[int], Iterator[str]]  # of about this many bytes each
    has_end: bool  # whether an end token follows
    row: bool = False  # whether it is a row of a file, not a file
    group: str = ""  # what it belongs to, such as the article of a paragraph: its `data.split_by`

    @property
    def is_blank(self) -> bool:
        return not any(chunk.strip() for chunk in self.chunks(CHUNK_BYTES))


def documents(data: DocumentOptions, split: str, base_dir: Path | None = None) -> Iterator[Document]:
    """A split's documents in order, including blank ones."""
    path = file_of(data, split, base_dir)
    files = expand(path)
    held_out = (0.0, 0.0) if own_file(data, split) else fractions(data)
    if data.text and not any(map(in_rows, files.values())):
        raise UserError(f"data.text = '{data.text}', but {path} has no columns; expected a .jsonl, .tsv or .csv file")
    if "" in files and not in_rows(path):
        yield _section(path, split, held_out)
        return
    for name, file in files.items():
        if in_rows(file):
            yield from _rows(file, data, split, held_out)
        elif _belongs(name, split, held_out):
            yield Document(str(file), lambda size, file=file: read_chunks(file, size=size), True)


def _belongs(value: str, split: str, held_out: tuple[float, float]) -> bool:
    return not any(held_out) or split_of(value, *held_out) == split


def in_rows(path: Path) -> bool:
    """Whether a file has columns."""
    return suffix(path) in (".jsonl", ".tsv", ".csv")


def _rows(path: Path, data: DocumentOptions, split: str, held_out: tuple[float, float]) -> Iterator[Document]:
    """One document a row, from the column `data.text`; else from the first column, in JSON lines from `text`."""
    column = data.text or ("text" if suffix(path) == ".jsonl" else "")
    group_column = "" if data.split_by == "source" else data.split_by
    required = {"data.text": column, "data.split_by": group_column}
    for fields, location in rows(path, data.columns, {option: name for option, name in required.items() if name}):
        text = fields[column or next(iter(fields))]
        group = fields[group_column] if group_column else ""
        if _belongs(group if group_column else text, split, held_out):
            yield Document(location, lambda size, text=text: text_chunks(text, size), True, True, group)


def unnamed_column(data: DocumentOptions, split: str, base_dir: Path | None = None) -> bool:
    """Whether a header would be read as a document, because no option names a column."""
    files = expand(file_of(data, split, base_dir)).values()
    separated = any(suffix(file) in (".tsv", ".csv") for file in files)
    return separated and not data.text and not data.columns and data.split_by == "source"


def tokenizer_texts(data: DocumentOptions, split: str, base_dir: Path | None = None) -> Iterator[str]:
    """What a tokenizer is trained on: the text that is not blank, a few lines at once with their line breaks."""
    for document in documents(data, split, base_dir):
        if not document.is_blank:
            yield from document.chunks(TRAINER_CHUNK)


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_chunks(path: Path, begin: int = 0, end: int | None = None, size: int = CHUNK_BYTES) -> Iterator[str]:
    """The text of a file from byte `begin` to `end` in chunks, exactly as it is except for a byte order mark."""
    return _split_at_words(decoded(path, begin, end, size))


def text_chunks(text: str, size: int) -> Iterator[str]:
    """The same for a text in memory."""
    return _split_at_words(text[begin : begin + size] for begin in range(0, len(text), size))


def _split_at_words(blocks: Iterable[str]) -> Iterator[str]:
    pending = ""
    for block in blocks:
        position = _split_position(pending) if block else 0  # a text that ends here need not be split
        if position:
            yield pending[:position]
        pending = pending[position:] + block
    if pending:
        yield pending


def _split_position(text: str) -> int:
    """Where a chunk may end, 0 for nowhere yet. A tokenizer joins neither words nor runs of spaces across it."""
    for mark, after in (("\n", 1), (" ", 0)):
        position = text.rfind(mark, 1, len(text) - 1)
        while position > 0:
            if not text[position - 1].isspace() and not text[position + 1].isspace():
                return position + after
            position = text.rfind(mark, 1, position)
    return len(text) if len(text) >= MAX_CHUNK else 0


def decoded(path: Path, begin: int, end: int | None, size: int) -> Iterator[str]:
    """A file's characters in blocks; a byte that is not UTF-8 is an error that names its line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = begin
    lines = 0
    at_start = begin == 0
    with unpacked(path, lambda: f"line {lines}") as file:
        file.seek(begin)
        while raw := file.read(size if end is None else min(size, end - position)):
            start = position - len(decoder.getstate()[0])  # of the bytes that are decoded now
            try:
                text = decoder.decode(raw)
            except UnicodeDecodeError as error:
                raise not_utf8(path, *_line_of(path, start + error.start), error.object[error.start]) from None
            position += len(raw)
            lines += text.count("\n")
            if at_start and text:
                text = text.removeprefix(BYTE_ORDER_MARK)
                at_start = False
            yield text
    if left := decoder.getstate()[0]:
        raise not_utf8(path, *_line_of(path, position - len(left)), left[0])


def _line_of(path: Path, position: int) -> tuple[int, int]:
    """The line of a byte, and which byte of it, both from 1 on."""
    line = 1
    line_start = done = 0
    with unpacked(path, lambda: f"line {line}") as file:
        while raw := file.read(min(CHUNK_BYTES, position - done)):
            line += raw.count(b"\n")
            line_start = done + raw.rfind(b"\n") + 1 if b"\n" in raw else line_start
            done += len(raw)
    return line, position - line_start + 1


# ── splits by position ───────────────────────────────────────────────────────────────────────────────────────────────


def _section(path: Path, split: str, held_out: tuple[float, float]) -> Document:
    """A file, or the section of it that is held out by position: train | validation | test."""
    with unpacked(path, lambda: "line 0") as file:
        if not file.read(1):
            raise UserError(f"{path}: the file is empty")
    if not any(held_out):
        return Document(str(path), lambda size: read_chunks(path, size=size), False)
    validation, test = held_out
    length = _unpacked_size(path)
    first, second = (_border(path, int(length * share), length) for share in (1 - validation - test, 1 - test))
    begin, end = {"train": (0, first), "validation": (first, second), "test": (second, length)}[split]
    if begin == end:
        raise UserError(
            f"{path}: too short ({length} bytes) to hold out {validation} for validation and {test} for test: "
            f"the {split} split is empty"
        )
    return Document(str(path), lambda size: read_chunks(path, begin, end, size), False)


def _unpacked_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    size = line = 0
    with unpacked(path, lambda: f"line {line}") as file:
        while raw := file.read(CHUNK_BYTES):
            size += len(raw)
            line += raw.count(b"\n")
    return size


def _border(path: Path, position: int, size: int) -> int:
    """After the first line break from a byte on; after a space, or between characters, if the line is too long."""
    with unpacked(path, lambda: f"byte {position}") as file:
        file.seek(position)
        raw = file.read(CHUNK_BYTES)
    for mark in (b"\n", b" "):
        found_at = raw.find(mark, 0, size - 1 - position)  # one that ends the text would leave nothing after it
        if found_at >= 0:
            return position + found_at + 1
    while raw and 0x80 <= raw[0] < 0xC0:  # inside a character
        position += 1
        raw = raw[1:]
    return position
