"""Running text → one array of token ids on disk, written once and memory-mapped: memory does not grow with the text.

cache/<key>/   tokens, stream.json (counts, the report, the files' hashes)

    text of document 1, end, text of document 2, end, …
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from regard.data.cache import (
    Report,
    atomic_folder,
    cache_path,
    hash_file,
    open_cached,
    read_facts,
    settle,
    smallest_uint,
    write_facts,
)
from regard.data.documents import PIECE, Document, documents, unnamed_column
from regard.data.files import expand
from regard.data.splits.hashed import file_of, fractions
from regard.errors import UserError
from regard.progress import Progress, shown
from regard.text.vocabulary import MISSING, Tokenizer

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

FORMAT = "stream 1"  # part of every key: raise it when the files change

AT_ONCE = 1 << 20  # characters encoded at once, shared among the cores

BREAK = "\n"  # what a piece that goes on is encoded behind


class Stream:
    """A prepared text, memory-mapped."""

    def __init__(self, folder: Path):
        facts = read_facts(folder / "stream.json")
        self.report = Report.of(facts["report"])
        self.hashes: dict[str, str] = facts["hashes"]
        self.documents: int = self.report.kept
        self.bytes: int = facts["bytes"]  # of the text in UTF-8; an end token is none of them
        self.tokens = np.memmap(folder / "tokens", dtype=facts["dtype"], mode="r")
        self._count: int = facts["tokens"]

    @property
    def whole(self) -> bool:
        """Whether the file was not cut, as a full disk or a broken copy leaves it."""
        return len(self.tokens) == self._count

    def __len__(self) -> int:
        return self._count


def prepare_stream(
    data: "DataOptions",
    part: str,
    tokenizer: Tokenizer,
    cache: Path,
    beside: Path | None = None,
    progress: Progress | None = None,
) -> Stream:
    """A part of the data as a Stream: found in the cache when the same files, options and tokenizer were prepared."""
    files = expand(file_of(data, part, beside))
    hashes = {name or path.name: hash_file(path) for name, path in files.items()}
    options = [list(files), data.text, data.columns, data.split_by, fractions(data), part]
    folder = cache_path(cache, [FORMAT, json.dumps([hashes, options]), tokenizer.content()])
    report = Report(unit="documents", notes=_notes(data, part, beside, tokenizer))
    return open_cached(folder, Stream) or written(
        documents(data, part, beside), folder, tokenizer, report, hashes, progress
    )


def prepare_documents(texts: Iterable[str], key: str, tokenizer: Tokenizer, cache: Path) -> Stream:
    """Documents made on the spot as a Stream; `key` says all that decides them."""
    folder = cache_path(cache, [FORMAT, "generated", key, tokenizer.content()])
    found = (
        Document(f"{key}:{number}", lambda size, text=text: iter([text]), True) for number, text in enumerate(texts, 1)
    )
    return open_cached(folder, Stream) or written(found, folder, tokenizer, Report(unit="documents"), {}, None)


def written(
    found: Iterable[Document],
    folder: Path,
    tokenizer: Tokenizer,
    report: Report,
    hashes: dict[str, str],
    progress: Progress | None,
) -> Stream:
    """Documents as the Stream of a folder."""
    with atomic_folder(folder) as place:
        with (place / "tokens").open("wb") as file, shown("preparing: {} tokens", progress) as show:
            writer = Writer(file, tokenizer, report, show)
            writer.write(found)
            settle(file)
        write_facts(place / "stream.json", {**writer.facts(), "hashes": hashes})
    return Stream(folder)


def _notes(data: "DataOptions", part: str, beside: Path | None, tokenizer: Tokenizer) -> list[str]:
    """What a reader of the report should know of how the text is taken."""
    notes = []
    if unnamed_column(data, part, beside):
        notes.append("line 1 is taken as a document: no header is named (data.text)")
    if tokenizer.end == MISSING:
        notes.append("the tokenizer has no end token: nothing stands between documents")
    return notes


class _Piece(NamedTuple):
    text: str
    goes_on: bool  # whether text of the same document stands before it
    ends: bool  # whether an end token follows


class Writer:
    """Appends documents to a file of tokens, about a megabyte of text at once."""

    def __init__(self, file: BinaryIO, tokenizer: Tokenizer, report: Report, show: Progress):
        self.file, self.tokenizer, self.report, self.show = file, tokenizer, report, show
        self.dtype = smallest_uint(tokenizer.size)
        self.tokens = self.bytes = 0
        self._waiting: list[_Piece] = []
        self._characters = 0  # that wait
        self._lead = tokenizer.encode(BREAK)

    def write(self, found: Iterable[Document]) -> None:
        for document in found:
            self.report.read += 1
            if document.blank:
                self.report.skip("blank", document.place)
                continue
            self.report.kept += 1
            goes_on = False
            for text in document.pieces(PIECE):
                self._add(_Piece(text, goes_on, False))
                goes_on = True
            if document.ends:
                self._waiting[-1] = self._waiting[-1]._replace(ends=True)
        self._flush()
        if not self.report.kept:
            raise UserError(f"no document left to use: {self.report}")
        self.report.notes.insert(0, f"{self.tokens} tokens of {self.bytes} bytes")

    def facts(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "bytes": self.bytes, "dtype": self.dtype, "report": asdict(self.report)}

    def _add(self, piece: _Piece) -> None:
        if self._characters >= AT_ONCE:
            self._flush()
        self._waiting.append(piece)
        self._characters += len(piece.text)

    def _flush(self) -> None:
        end = [] if self.tokenizer.end == MISSING else [self.tokenizer.end]
        for piece, row in zip(self._waiting, self._encoded(), strict=True):
            row += end if piece.ends else []
            self.file.write(np.array(row, self.dtype).tobytes())
            self.tokens += len(row)
            self.bytes += len(piece.text.encode())
        self._waiting, self._characters = [], 0
        self.show(self.tokens)

    def _encoded(self) -> list[list[int]]:
        """Each piece's tokens; many tokenizers put a space before the first word, so one that goes on is not first."""
        lead = self._lead
        rows = self.tokenizer.encode_many([BREAK + text if goes_on else text for text, goes_on, _ in self._waiting])
        for number, (text, goes_on, _) in enumerate(self._waiting):
            if goes_on:
                row = rows[number]
                rows[number] = row[len(lead) :] if row[: len(lead)] == lead else self.tokenizer.encode(text)
        return rows
