"""Documents → sentences → tokens on disk, for pre-training; prepared once and memory-mapped.

news.jsonl .tsv    a document a row, of the column `data.text` (`text = "context"` reads the texts of SQuAD)
book.txt           a document between blank lines, its lines as they stand; without blank lines, a document a line

cache/<key>/       sentence.tokens, chunks.table (document, first sentence, end), sentences.json

Rows with the same value of `data.split_by` are one document, as the paragraphs of an article; where they follow each
other they are read on from one to the next.

A chunk is a run of a document's sentences, at least two, of about as many tokens as a row has room for: what a pair is
made of. Where one sentence is left over, the one before it is in two chunks.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.data.cache import (
    Report,
    atomic_folder,
    cache_path,
    hash_file,
    open_cached,
    read_facts,
    smallest_uint,
    write_facts,
)
from regard.data.documents import PIECE, Document, documents, of_text
from regard.data.files import expand
from regard.data.ragged import Ragged, RaggedWriter
from regard.data.splits.hashed import file_of, fractions
from regard.data.token_stream import Stream, written
from regard.errors import UserError
from regard.progress import Progress, shown
from regard.text.sentences import sentences
from regard.text.vocabulary import Tokenizer

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

FORMAT = "sentences 3"  # part of every key: raise it when the files change

AT_ONCE = 4096  # sentences encoded at once

ROWS = 256  # of one document at once


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def paragraphs(data: "DataOptions", part: str, beside: Path | None = None) -> Iterator[Document]:
    """A part's documents, each to be ended: rows as they are, running text cut at blank lines, else at every line."""
    for document in documents(data, part, beside):
        if document.row:
            yield document
            continue
        blank = _has_blank(document)
        for place, lines in _blocks(document, blank):
            text = "\n".join(lines)
            yield Document(place, lambda size, text=text: of_text(text, size), True)


def _lines(document: Document) -> Iterator[str]:
    held = ""
    for piece in document.pieces(PIECE):
        *whole, held = (held + piece).split("\n")
        yield from whole
    yield held


def _has_blank(document: Document) -> bool:
    """Whether a blank line stands between two that are not."""
    seen = gap = False
    for line in _lines(document):
        if line.strip():
            if gap:
                return True
            seen = True
        else:
            gap = seen
    return False


def _blocks(document: Document, blank: bool) -> Iterator[tuple[str, list[str]]]:
    held: list[str] = []
    for number, line in enumerate(_lines(document), 1):
        if line.strip():
            held.append(line)
        if held and (not blank or not line.strip()):
            yield f"{document.place}:{number}", held
            held = []
    if held:
        yield f"{document.place}: its end", held


# ── prepared ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key(data: "DataOptions", part: str, beside: Path | None) -> tuple[str, dict[str, str]]:
    files = expand(file_of(data, part, beside))
    hashes = {name or path.name: hash_file(path) for name, path in files.items()}
    return json.dumps([hashes, data.text, data.columns, data.split_by, fractions(data), part]), hashes


def prepare_stream(
    data: "DataOptions", part: str, tokenizer: Tokenizer, cache: Path, beside: Path | None = None
) -> Stream:
    """A part's documents one after another as a Stream, to be packed into blocks."""
    key, hashes = _key(data, part, beside)
    folder = cache_path(cache, [FORMAT, "stream", key, tokenizer.content()])
    found = open_cached(folder, Stream)
    report = Report(unit="documents")
    return found or written(paragraphs(data, part, beside), folder, tokenizer, report, hashes, None)


class Sentences:
    """Prepared sentences and the chunks of them, memory-mapped."""

    def __init__(self, folder: Path):
        facts = read_facts(folder / "sentences.json")
        self.report = Report.of(facts["report"])
        self.hashes: dict[str, str] = facts["hashes"]
        self.room: int = facts["room"]
        self.tokens = Ragged(folder / "sentence.tokens", facts["dtype"])
        self._chunks = Ragged(folder / "chunks.table", "int64")
        self._counts: list[int] = facts["counts"]  # sentences, chunks
        self.documents: int = facts["documents"]  # those of one group are one

    @property
    def whole(self) -> bool:
        return self.tokens.whole(self._counts[0]) and self._chunks.whole(self._counts[1])

    def __len__(self) -> int:
        return self._counts[1]

    def chunk(self, number: int) -> tuple[int, int, int]:
        """The document of a chunk, its first sentence, and the one behind its last."""
        document, first, end = self._chunks[number].tolist()
        return document, first, end


def prepare_sentences(
    data: "DataOptions",
    part: str,
    tokenizer: Tokenizer,
    cache: Path,
    room: int,
    beside: Path | None = None,
    progress: Progress | None = None,
) -> Sentences:
    """A part's sentences in chunks of about `room` tokens, found in the cache when they were prepared before."""
    if room < 4:
        raise UserError(f"data.max_length leaves room for {room} tokens: two texts need at least 4")
    key, hashes = _key(data, part, beside)
    folder = cache_path(cache, [FORMAT, "chunks", key, str(room), tokenizer.content()])
    if found := open_cached(folder, Sentences):
        return found
    report = Report(unit="documents")
    with atomic_folder(folder) as place:
        dtype = smallest_uint(tokenizer.size)
        with (
            RaggedWriter(place / "sentence.tokens", dtype) as rows,
            RaggedWriter(place / "chunks.table", "int64") as table,
            shown("preparing: {} documents", progress) as show,
        ):
            counts, number = [0, 0], Numbers()
            for group, encoded in _encoded(_articles(paragraphs(data, part, beside)), tokenizer, room, report, show):
                document = number(group)
                chunks = [(document, counts[0] + first, counts[0] + end) for first, end in cut(encoded, room)]
                rows.extend(encoded)
                table.extend(chunks)
                counts = [counts[0] + len(encoded), counts[1] + len(chunks)]
            rows.settle()
            table.settle()
        if not report.kept:
            raise UserError(f"no document of two sentences left to use: {report}")
        report.notes.append(f"{counts[0]} sentences in {counts[1]} chunks of about {room} tokens")
        facts = {"report": asdict(report), "hashes": hashes, "dtype": dtype, "room": room, "counts": counts}
        facts["documents"] = number.given
        write_facts(place / "sentences.json", facts)
    return Sentences(folder)


class Numbers:
    """Documents by number; those of one group have one, those without a group one each."""

    def __init__(self) -> None:
        self.given, self._groups = 0, dict[str, int]()

    def __call__(self, group: str) -> int:
        number = self._groups.setdefault(group, self.given) if group else self.given
        self.given += number == self.given
        return number


def _articles(found: Iterator[Document]) -> Iterator[list[Document]]:
    """Rows of one group that follow each other, as the paragraphs of an article: one document, some at a time."""
    for _, rows in itertools.groupby(found, key=lambda row: row.group or row.place):
        while some := list(itertools.islice(rows, ROWS)):
            yield some


def _encoded(
    found: Iterator[list[Document]], tokenizer: Tokenizer, room: int, report: Report, show: Progress
) -> Iterator[tuple[str, list[list[int]]]]:
    """Each document's group and sentences as tokens; one of more than half a row is cut, so that each chunk has two."""
    for some in found:
        report.read += len(some)
        show(report.read)
        text = "\n".join("".join(row.pieces(PIECE)) for row in some)
        parts = [sentence for line in text.split("\n") for sentence in sentences(line)]
        rows = [row for begin in range(0, len(parts), AT_ONCE) for row in _rows(parts, begin, tokenizer)]
        half = room // 2
        rows = [row[begin : begin + half] for row in rows for begin in range(0, len(row), half)]
        if len(rows) < 2:
            for row in some:
                report.skip("blank" if not rows else "a single sentence, which has no next", row.place)
            continue
        report.kept += len(some)
        yield some[0].group, rows


def _rows(parts: list[str], begin: int, tokenizer: Tokenizer) -> list[list[int]]:
    return tokenizer.encode_many(parts[begin : begin + AT_ONCE])


def cut(rows: list[list[int]], room: int) -> Iterator[tuple[int, int]]:
    """Chunks of a document: sentences until they fill the room; the last takes a second one from before it."""
    first = 0
    lengths = np.cumsum([len(row) for row in rows])
    while first < len(rows):
        begun = int(lengths[first - 1]) if first else 0
        end = min(len(rows), int(np.searchsorted(lengths, begun + room)) + 1)
        yield min(first, end - 2), end
        first = end
