"""Documents → sentences → tokens, prepared for pre-training.

news.jsonl .tsv    one document per row, from the column `data.text` (`text = "context"` reads the passages of SQuAD)
book.txt           documents separated by blank lines; without blank lines, one document per line

columns            tokens (one sentence per row), chunks (document, first sentence, end)

Rows with the same value of `data.split_by` are one document, such as the paragraphs of an article; consecutive ones
are joined.

A pair is drawn from a chunk: at least two consecutive sentences of a document, with about as many tokens as a row. If
one sentence is left over, the one before it is in two chunks.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.cache import Report, cache_path, options_key, smallest_uint
from regard.data.documents import CHUNK_BYTES, Document, documents, text_chunks
from regard.data.files import hash_files
from regard.data.ragged import Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.data.splits.hashed import file_of
from regard.data.token_stream import TokenStream, write_stream
from regard.errors import UserError
from regard.progress import shown
from regard.tasks.fill.options import FillData
from regard.text.sentences import sentences
from regard.text.tokenizer import Tokenizer

FORMAT = "sentences 4"  # part of every key: increase it when what is written changes

BATCH_SENTENCES = 4096  # encoded at once

BATCH_ROWS = 256  # of one document at once

# Options of batches, which do not change what is prepared.
UNPREPARED = ("max_length", "mask_probability", "whole_word_mask", "pair_task")


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def paragraphs(data: FillData, split: str, base_dir: Path | None = None) -> Iterator[Document]:
    """A split's documents: rows as they are, plain text split at blank lines, else line by line."""
    for document in documents(data, split, base_dir):
        if document.row:
            yield document
            continue
        blank_lines = _has_blank_line(document)
        block: list[str] = []
        for line_number, line in enumerate(_lines(document), 1):
            if line.strip():
                block.append(line)
            if block and (not blank_lines or not line.strip()):
                yield _paragraph(f"{document.location}:{line_number}", block)
                block = []
        if block:
            yield _paragraph(f"{document.location}: its end", block)


def _paragraph(location: str, lines: list[str]) -> Document:
    text = "\n".join(lines)
    return Document(location, lambda size: text_chunks(text, size), True)


def _lines(document: Document) -> Iterator[str]:
    rest = ""
    for chunk in document.chunks(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
    yield rest


def _has_blank_line(document: Document) -> bool:
    """Whether there is a blank line between two that are not."""
    runs = itertools.groupby(_lines(document), key=lambda line: bool(line.strip()))
    return len(list(itertools.islice((run for has_text, run in runs if has_text), 2))) == 2


# ── prepared ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def prepare_stream(
    data: FillData, split: str, tokenizer: Tokenizer, cache: Path, base_dir: Path | None = None
) -> TokenStream:
    """A split's documents one after another, to be packed into blocks."""
    hashes = hash_files(file_of(data, split, base_dir))
    key = [FORMAT, "stream", options_key(data, split, UNPREPARED), json.dumps(hashes), tokenizer.content()]
    report = Report(unit="documents")
    return write_stream(paragraphs(data, split, base_dir), cache_path(cache, key), tokenizer, report, hashes)


class SentenceDataset(RaggedDataset):
    """Prepared sentences and the chunks of them."""

    def __init__(self, columns: Mapping[str, Column], facts: dict[str, Any]):
        super().__init__(columns, facts)
        self.max_tokens: int = facts["max_tokens"]  # of the two texts of a pair
        self.documents: int = facts["documents"]  # rows of one group are one document
        self.tokens = columns["tokens"]

    def __len__(self) -> int:
        return len(self.columns["chunks"])

    def chunk(self, index: int) -> tuple[int, int, int]:
        """The document of a chunk, its first sentence, and the one after its last."""
        document, first, end = self.columns["chunks"][index].tolist()
        return document, first, end


def prepare_sentences(
    data: FillData, split: str, tokenizer: Tokenizer, cache: Path, max_tokens: int, base_dir: Path | None = None
) -> SentenceDataset:
    """A split's sentences in chunks of about `max_tokens`, from the cache if they were prepared before."""
    if max_tokens < 4:
        raise UserError(f"data.max_length leaves {max_tokens} tokens for the texts: two texts need at least 4")
    hashes = hash_files(file_of(data, split, base_dir))
    report = Report(unit="documents")

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes
        groups: dict[str, int] = {}
        document_count = 0
        with shown("preparing: {} documents") as show:
            for rows in _articles(paragraphs(data, split, base_dir)):
                encoded = _encode(rows, tokenizer, max_tokens // 2, report)
                show(report.read)
                if not encoded:
                    continue
                group = rows[0].group
                document = groups.setdefault(group, document_count) if group else document_count
                document_count += document == document_count
                before = writer["tokens"].rows
                chunks = split_into_chunks(encoded, max_tokens)
                writer["chunks"].extend([(document, before + first, before + end) for first, end in chunks])
                writer["tokens"].extend(encoded)
        if not report.kept:
            raise UserError(f"no document of two sentences left to use: {report}")
        report.notes.append(
            f"{writer['tokens'].rows} sentences in {writer['chunks'].rows} chunks of about {max_tokens} tokens"
        )
        writer.facts |= {"max_tokens": max_tokens, "documents": document_count}

    layouts = {"tokens": Layout(smallest_uint(tokenizer.size)), "chunks": Layout("int64", 3)}
    key = [FORMAT, "chunks", options_key(data, split, UNPREPARED), json.dumps(hashes), str(max_tokens)]
    return prepare(cache_path(cache, [*key, tokenizer.content()]), layouts, write, SentenceDataset, report)


def _articles(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Consecutive rows of one group, such as the paragraphs of an article, are one document; in batches."""
    for _, rows in itertools.groupby(documents, key=lambda row: row.group or row.location):
        while batch := list(itertools.islice(rows, BATCH_ROWS)):
            yield batch


def _encode(documents: list[Document], tokenizer: Tokenizer, max_sentence: int, report: Report) -> list[list[int]]:
    """The sentences of a document as tokens, long ones divided; empty if there are fewer than two."""
    report.read += len(documents)
    text = "\n".join("".join(document.chunks(CHUNK_BYTES)) for document in documents)
    split = [sentence for line in text.split("\n") for sentence in sentences(line)]
    rows = []
    for begin in range(0, len(split), BATCH_SENTENCES):
        for row in tokenizer.encode_many(split[begin : begin + BATCH_SENTENCES]):
            rows += [row[start : start + max_sentence] for start in range(0, len(row), max_sentence)]
    if len(rows) < 2:
        for document in documents:
            report.skip("blank" if not rows else "a single sentence, which has no next", document.location)
        return []
    report.kept += len(documents)
    return rows


def split_into_chunks(rows: list[list[int]], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Chunks of a document: sentences until they have `max_tokens`; the last takes a second one from before it."""
    first = 0
    lengths = np.cumsum([len(row) for row in rows])
    while first < len(rows):
        tokens_before = int(lengths[first - 1]) if first else 0
        end = min(len(rows), int(np.searchsorted(lengths, tokens_before + max_tokens)) + 1)
        yield min(first, end - 2), end
        first = end
