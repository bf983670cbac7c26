"""Running text of any size, in pieces: memory does not grow with a file, and tokens do not show where it was cut.

… the end of a line.⏎|The next line …     after a line break with words on both sides,
… a word| and another …                   else before a space with words on both sides,
…                                         else, once a piece has grown to the bound, anywhere

book.txt            one document, without an end
books/*.txt         a document each
news.jsonl .tsv .csv  a document a row
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.data.files import expand, not_utf8, rows, unpacked
from regard.data.splits.hashed import file_of, fractions, own_file, part_of
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

PIECE = 1 << 16  # bytes read at once

GROWN = 1 << 22  # characters: a piece without a place to cut grows to here

LESSON = 1 << 12  # bytes: what a tokenizer learns from at once

MARK = "\ufeff"  # the byte order mark


class Document(NamedTuple):
    """A text of its own: where it stands, and a way to its pieces, which together are the text."""

    place: str
    pieces: Callable[[int], Iterator[str]]  # of about so many bytes each
    ends: bool  # whether an end token follows
    row: bool = False  # whether it is a row of a file, and no file
    group: str = ""  # what it is a part of, such as the article of a paragraph: its `data.split_by`

    @property
    def blank(self) -> bool:
        return not any(piece.strip() for piece in self.pieces(PIECE))


def documents(data: "DataOptions", part: str, beside: Path | None = None) -> Iterator[Document]:
    """A part's documents in order, blank ones too."""
    path = file_of(data, part, beside)
    files = expand(path)
    held_out = (0.0, 0.0) if own_file(data, part) else fractions(data)
    if data.text and not any(map(in_rows, files.values())):
        raise UserError(f"data.text = '{data.text}', but {path} is running text: .jsonl, .tsv and .csv have columns")
    if "" in files and not in_rows(path):
        yield _section(path, part, held_out)
        return
    for name, file in files.items():
        if in_rows(file):
            yield from _rows(file, data, part, held_out)
        elif _belongs(name, part, held_out):
            yield Document(str(file), lambda size, file=file: read_pieces(file, size=size), True)


def _belongs(value: str, part: str, held_out: tuple[float, float]) -> bool:
    return not any(held_out) or part_of(value, *held_out) == part


def in_rows(path: Path) -> bool:
    """Whether a file has columns."""
    return path.name.removesuffix(".gz").endswith((".jsonl", ".tsv", ".csv"))


def _rows(path: Path, data: "DataOptions", part: str, held_out: tuple[float, float]) -> Iterator[Document]:
    """One document a row, of the column `data.text`; else of the first, in JSON lines of `text`."""
    column = data.text or ("text" if path.name.removesuffix(".gz").endswith(".jsonl") else "")
    group = "" if data.split_by == "source" else data.split_by
    for fields, place in rows(path, data.columns, tuple(name for name in (column, group) if name)):
        text = fields[column or next(iter(fields))]
        if _belongs(fields[group] if group else text, part, held_out):
            yield Document(
                place, lambda size, text=text: of_text(text, size), True, True, fields[group] if group else ""
            )


def unnamed_column(data: "DataOptions", part: str, beside: Path | None = None) -> bool:
    """Whether a first line with names would be taken as a document, because nothing asks for a name."""
    files = expand(file_of(data, part, beside)).values()
    tabbed = any(file.name.removesuffix(".gz").endswith((".tsv", ".csv")) for file in files)
    return tabbed and not data.text and not data.columns and data.split_by == "source"


def lessons(data: "DataOptions", part: str, beside: Path | None = None) -> Iterator[str]:
    """What a tokenizer is learnt from: the text that is not blank, a few lines at once with their breaks."""
    for document in documents(data, part, beside):
        if not document.blank:
            yield from document.pieces(LESSON)


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_pieces(path: Path, begin: int = 0, end: int | None = None, size: int = PIECE) -> Iterator[str]:
    """The text of a file from byte `begin` to `end`, exactly as it is but for a byte order mark, in pieces."""
    return _cut(decoded(path, begin, end, size))


def of_text(text: str, size: int) -> Iterator[str]:
    """The same of a text that is there."""
    return _cut(text[place : place + size] for place in range(0, len(text), size))


def _cut(chunks: Iterable[str]) -> Iterator[str]:
    held = ""
    for chunk in chunks:
        place = _place_to_cut(held) if chunk else 0  # a text that ends here need not be cut
        if place:
            yield held[:place]
        held = held[place:] + chunk
    if held:
        yield held


def _place_to_cut(text: str) -> int:
    """Where a piece may end; 0 for nowhere yet. A tokenizer joins neither words nor runs of spaces across it."""
    for mark, after in (("\n", 1), (" ", 0)):
        place = text.rfind(mark, 1, len(text) - 1)
        while place > 0:
            if not text[place - 1].isspace() and not text[place + 1].isspace():
                return place + after
            place = text.rfind(mark, 1, place)
    return len(text) if len(text) >= GROWN else 0


def decoded(path: Path, begin: int, end: int | None, size: int) -> Iterator[str]:
    """A file's characters, some at once; a byte that is not UTF-8 is an error with its line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position, breaks, first = begin, 0, begin == 0
    with unpacked(path, lambda: f"line {breaks}") as file:
        file.seek(begin)
        while raw := file.read(size if end is None else min(size, end - position)):
            start = position - len(decoder.getstate()[0])  # of the bytes that are decoded now
            try:
                text = decoder.decode(raw)
            except UnicodeDecodeError as error:
                raise not_utf8(path, *_line_of(path, start + error.start), error.object[error.start]) from None
            position += len(raw)
            breaks += text.count("\n")
            if first and text:
                text, first = text.removeprefix(MARK), False
            yield text
    if left := decoder.getstate()[0]:
        raise not_utf8(path, *_line_of(path, position - len(left)), left[0])


def _line_of(path: Path, position: int) -> tuple[int, int]:
    """The line of a byte, and which byte of it, both from 1 on."""
    line, begun, done = 1, 0, 0
    with unpacked(path, lambda: f"line {line}") as file:
        while raw := file.read(min(PIECE, position - done)):
            line += raw.count(b"\n")
            begun = done + raw.rfind(b"\n") + 1 if b"\n" in raw else begun
            done += len(raw)
    return line, position - begun + 1


# ── parts by position ────────────────────────────────────────────────────────────────────────────────────────────────


def _section(path: Path, part: str, held_out: tuple[float, float]) -> Document:
    """A file, or the part of it that is held out by position: train | validation | test."""
    with unpacked(path, lambda: "line 0") as file:
        if not file.read(1):
            raise UserError(f"{path}: the file is empty")
    if not any(held_out):
        return Document(str(path), lambda piece: read_pieces(path, size=piece), False)
    size, (validation, test) = _size(path), held_out
    first, second = (_border(path, int(size * share), size) for share in (1 - validation - test, 1 - test))
    begin, end = {"train": (0, first), "validation": (first, second), "test": (second, size)}[part]
    if begin == end:
        raise UserError(
            f"{path}: its {size} bytes are too few to hold out {validation} for validation and {test} for test: "
            f"none are left for {part}"
        )
    return Document(str(path), lambda piece: read_pieces(path, begin, end, piece), False)


def _size(path: Path) -> int:
    """How many bytes a file has, unpacked."""
    if path.suffix != ".gz":
        return path.stat().st_size
    size = line = 0
    with unpacked(path, lambda: f"line {line}") as file:
        while raw := file.read(PIECE):
            size, line = size + len(raw), line + raw.count(b"\n")
    return size


def _border(path: Path, position: int, size: int) -> int:
    """Behind the first line break from a byte on; behind a space, or between characters, where the line is too long."""
    with unpacked(path, lambda: f"byte {position}") as file:
        file.seek(position)
        raw = file.read(PIECE)
    for mark in (b"\n", b" "):
        place = raw.find(mark, 0, size - 1 - position)  # one that ends the text would leave nothing behind it
        if place >= 0:
            return position + place + 1
    while raw and 0x80 <= raw[0] < 0xC0:  # inside a character
        position, raw = position + 1, raw[1:]
    return position
