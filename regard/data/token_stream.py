"""Raw text → one array of token ids on disk, written once and memory-mapped: memory does not grow with the text.

text of document 1, end, text of document 2, end, …
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.config.options import DocumentOptions
from regard.data.cache import Facts, Report, cache_path, options_key, smallest_uint
from regard.data.documents import CHUNK_BYTES, Document, documents, unnamed_column
from regard.data.files import hash_files
from regard.data.ragged import Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.data.splits.hashed import file_of
from regard.errors import UserError
from regard.progress import shown
from regard.text.tokenizer import MISSING, Tokenizer

FORMAT = "stream 2"  # part of every key: increase it when what is written changes

BATCH_CHARACTERS = 1 << 20  # characters encoded at once, shared among the cores

LINE_BREAK = "\n"  # a chunk that continues a document is encoded after it


class TokenStream(RaggedDataset):
    """A prepared text."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        super().__init__(columns, facts)
        self.tokens = columns["tokens"].values
        self.documents = self.report.kept
        self.bytes: int = facts["bytes"]  # of the text in UTF-8, without end tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def split_at(self, end: int) -> Iterator[np.ndarray]:
        """The tokens of each document, without the end token that follows."""
        begin = 0
        for border in np.flatnonzero(self.tokens == end).tolist():
            yield self.tokens[begin:border]
            begin = border + 1
        if begin < len(self):
            yield self.tokens[begin:]


def prepare_stream(
    data: DocumentOptions, split: str, tokenizer: Tokenizer, cache: Path, base_dir: Path | None = None
) -> TokenStream:
    """A split as a TokenStream, from the cache if the same files, options and tokenizer were prepared before."""
    hashes = hash_files(file_of(data, split, base_dir))
    report = Report(unit="documents")
    if unnamed_column(data, split, base_dir):
        report.notes.append("line 1 is read as a document, not as a header: data.text names no column")
    if tokenizer.end == MISSING:
        report.notes.append("the tokenizer has no end token: documents are joined without a separator")
    folder = cache_path(
        cache, [FORMAT, options_key(data, split, ["max_length"]), json.dumps(hashes), tokenizer.content()]
    )
    return write_stream(documents(data, split, base_dir), folder, tokenizer, report, hashes)


def prepare_documents(texts: Iterable[str], key: str, tokenizer: Tokenizer, cache: Path) -> TokenStream:
    """Generated documents as a TokenStream; `key` is all that determines them."""
    folder = cache_path(cache, [FORMAT, "generated", key, tokenizer.content()])
    stream = (
        Document(f"{key}:{index}", lambda size, text=text: iter([text]), True) for index, text in enumerate(texts, 1)
    )
    return write_stream(stream, folder, tokenizer, Report(unit="documents"))


def write_stream(
    documents: Iterable[Document],
    folder: Path,
    tokenizer: Tokenizer,
    report: Report,
    hashes: dict[str, str] | None = None,
) -> TokenStream:
    """Documents as the TokenStream of a folder, which is opened if it exists."""

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes or {}
        column = writer["tokens"]
        size = 0
        with shown("preparing: {} tokens") as show:
            for chunks in _batches(_chunks(documents, report)):
                for chunk, tokens in zip(chunks, _encode(chunks, tokenizer), strict=True):
                    end = [tokenizer.end] if chunk.has_end and tokenizer.end != MISSING else []
                    column.extend_array(tokens + end)
                    size += len(chunk.text.encode())
                show(column.rows)
        if not report.kept:
            raise UserError(f"no document left to use: {report}")
        report.notes.insert(0, f"{column.rows} tokens of {size} bytes")
        writer.facts["bytes"] = size

    return prepare(folder, {"tokens": Layout(smallest_uint(tokenizer.size), 1)}, write, TokenStream, report)


class _Chunk(NamedTuple):
    text: str
    continues: bool  # whether text of the same document precedes it
    has_end: bool = False  # whether an end token follows


def _chunks(documents: Iterable[Document], report: Report) -> Iterator[_Chunk]:
    """The chunks of all documents that are not blank."""
    for document in documents:
        report.read += 1
        if document.is_blank:
            report.skip("blank", document.location)
            continue
        report.kept += 1
        texts = document.chunks(CHUNK_BYTES)
        last = _Chunk(next(texts), continues=False)
        for text in texts:
            yield last
            last = _Chunk(text, continues=True)
        yield last._replace(has_end=document.has_end)


def _batches(chunks: Iterable[_Chunk]) -> Iterator[list[_Chunk]]:
    """Chunks that are encoded together."""
    batch = []
    characters = 0
    for chunk in chunks:
        batch.append(chunk)
        characters += len(chunk.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch = []
            characters = 0
    yield batch


def _encode(chunks: list[_Chunk], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of each chunk. Many tokenizers put a space before the first word, so a line break precedes it."""
    prefix = tokenizer.encode(LINE_BREAK)
    rows = tokenizer.encode_many([LINE_BREAK * chunk.continues + chunk.text for chunk in chunks])
    for index, chunk in enumerate(chunks):
        if chunk.continues:
            row = rows[index]
            rows[index] = row[len(prefix) :] if row[: len(prefix)] == prefix else tokenizer.encode(chunk.text)
    return rows
