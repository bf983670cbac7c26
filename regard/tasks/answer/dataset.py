"""Questions → overlapping windows of tokens on disk, written once: where each answer stands among the tokens.

A text that follows its like is kept once, so that a window costs a few numbers. windows.py says what is written.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from regard.data.cache import (
    Report,
    atomic_folder,
    cache_path,
    hash_file,
    open_cached,
    settle,
    smallest_uint,
    write_facts,
)
from regard.data.files import expand
from regard.data.ragged import RaggedWriter
from regard.data.splits.hashed import file_of, fractions
from regard.errors import UserError
from regard.progress import Progress, shown
from regard.tasks.answer.files import Question, read
from regard.tasks.answer.windows import ABSENT, Window, Windows
from regard.text.special_tokens import SpecialTokens, pair_frame
from regard.text.vocabulary import Tokenizer

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

FORMAT = "windows 3"  # part of every key: raise it when the files change

AT_ONCE = 512  # questions encoded at once


def prepare(
    data: "DataOptions",
    part: str,
    tokenizer: Tokenizer,
    cache: Path,
    max_length: int,
    beside: Path | None = None,
    progress: Progress | None = None,
) -> Windows:
    """A part's questions as Windows: found in the cache when the same files, options and tokenizer were prepared."""
    stride = data.stride or max(1, max_length // 3)
    hashes = {name or path.name: hash_file(path) for name, path in expand(file_of(data, part, beside)).items()}
    options = [data.question, data.context, data.answer, data.columns, data.split_by, fractions(data), part]
    key = json.dumps([hashes, options, max_length, stride])
    found, folder = read(data, part, beside), f"{file_of(data, part, beside).parent}/"
    found = (each._replace(place=each.place.removeprefix(folder)) for each in found)  # the same files may move
    return prepare_questions(found, key, hashes, tokenizer, cache, (max_length, stride), progress)


def prepare_questions(
    found: Iterable[Question],
    key: str,
    hashes: dict[str, str],
    tokenizer: Tokenizer,
    cache: Path,
    size: tuple[int, int],
    progress: Progress | None = None,
) -> Windows:
    """Questions as Windows of this length and stride; `key` says all that decides them."""
    frame = pair_frame(tokenizer)
    folder = cache_path(cache, [FORMAT, key, json.dumps(size), tokenizer.content()])
    padding = max(tokenizer.pad, 0)
    there = open_cached(folder, lambda place: Windows(place, frame, padding))
    if there is not None:
        return there
    with atomic_folder(folder) as place, Writer(place, tokenizer, frame, *size) as writer:
        with shown("preparing: {} questions", progress) as show:
            writer.write(iter(found), show)
        writer.finish(hashes)
    return Windows(folder, frame, padding)


def cut(length: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Windows over a text of so many tokens, one each `stride`, until one holds its last token."""
    begin = 0
    while True:
        yield begin, min(begin + room, length)
        if begin + room >= length:
            return
        begin += stride


def token_span(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The tokens that hold characters start … end, first and last; nothing where none does."""
    inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end) & (spans[:, 1] > spans[:, 0]))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


class Writer:
    """Appends questions to the arrays of a folder, some hundred at once."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, frame: SpecialTokens, max_length: int, stride: int):
        self.folder, self.tokenizer, self.frame = folder, tokenizer, frame
        self.max_length, self.stride = max_length, stride
        self.report = Report(unit="questions")
        self.counts = {"contexts": 0, "questions": 0, "windows": 0, "unanswered": 0}
        self.widened = 0
        self.dtype = smallest_uint(tokenizer.size)
        self._stack = ExitStack()
        self._context = ""
        self._spans = np.zeros((0, 2), np.int32)

    def __enter__(self) -> "Writer":
        def rows(name: str, dtype: str = "uint8") -> RaggedWriter:
            return self._stack.enter_context(RaggedWriter(self.folder / name, dtype))

        self._files = {
            "context": rows("context.tokens", self.dtype),
            "spans": rows("spans.places", "int32"),
            "texts": rows("texts.bytes"),
            "question": rows("question.tokens", self.dtype),
            "facts": rows("facts.bytes"),
            "windows": rows("windows.table", "int32"),
        }
        self._lengths = self._stack.enter_context((self.folder / "windows.lengths").open("wb"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, found: Iterator[Question], show: Progress) -> None:
        while chunk := list(islice(found, AT_ONCE)):
            self.report.read += len(chunk)
            texts = list(dict.fromkeys(each.context for each in chunk))
            encoded = self.tokenizer.inner.encode_batch(texts, add_special_tokens=False)
            contexts = dict(zip(texts, encoded, strict=True))
            for question, row in zip(chunk, self.tokenizer.encode_many([each.text for each in chunk]), strict=True):
                self._add(question, row, contexts[question.context])
            show(self.report.read)

    def _add(self, question: Question, row: list[int], encoded: tokenizers.Encoding) -> None:
        room = self.max_length - self.frame.size - len(row)
        if not row or not question.context.strip():
            return self.report.skip("empty question or text", question.place)
        if room < self.stride:
            limit = self.max_length - self.frame.size - self.stride
            return self.report.skip(f"a question longer than {limit} tokens", question.place)
        if question.context != self._context or not self.counts["contexts"]:
            self._add_context(question.context, encoded)
        wanted = None
        if question.answers:
            text, start = question.answers[0]
            wanted = token_span(self._spans, start, start + len(text))
            if wanted is None:
                return self.report.skip("nothing left of the answer after normalisation", question.place)
            held = self._spans[wanted[0], 0], self._spans[wanted[1], 1]
            self.widened += question.context[held[0] : held[1]].strip() != text.strip()
        else:
            self.counts["unanswered"] += 1
        return self._add_windows(question, row, room, wanted)

    def _add_context(self, text: str, encoded: tokenizers.Encoding) -> None:
        self._context, self._spans = text, trimmed(encoded.offsets, text)
        self._files["context"].extend([encoded.ids])
        self._files["spans"].extend([self._spans.ravel()])
        self._files["texts"].extend_texts([text])
        self.counts["contexts"] += 1

    def _add_windows(self, question: Question, row: list[int], room: int, wanted: tuple[int, int] | None) -> None:
        table, number = [], self.counts["questions"]
        for begin, end in cut(len(self._spans), room, self.stride):
            holds = wanted is not None and begin <= wanted[0] and wanted[1] < end
            table.append(Window(number, begin, end, *(wanted if holds and wanted else (ABSENT, ABSENT))))
        facts = {
            "id": question.id,
            "question": question.text,
            "answers": question.answers,
            "context": self.counts["contexts"] - 1,
            "windows": [self.counts["windows"], len(table)],
            "place": question.place,
        }
        self._files["question"].extend([row])
        self._files["facts"].extend_texts([json.dumps(facts, ensure_ascii=False)])
        self._files["windows"].extend(table)
        lengths = [self.frame.size + len(row) + window.end - window.begin for window in table]
        self._lengths.write(np.array(lengths, np.int32).tobytes())
        self.report.kept += 1
        self.counts["questions"] += 1
        self.counts["windows"] += len(table)

    def finish(self, hashes: dict[str, str]) -> None:
        """Puts everything on the disk, the report last."""
        if not self.report.kept:
            raise UserError(f"no question left to use: {self.report}")
        self.report.notes.append(f"{self.counts['windows']} windows of at most {self.max_length} tokens")
        if self.counts["unanswered"]:
            self.report.notes.append(f"{self.counts['unanswered']} without an answer in their text")
        if self.widened:
            self.report.notes.append(f"{self.widened} answers end inside a token: the whole token is learnt")
        for file in self._files.values():
            file.settle()
        settle(self._lengths)
        facts = {"report": asdict(self.report), "hashes": hashes, "dtype": self.dtype, "counts": self.counts}
        write_facts(self.folder / "windows.json", facts)


def trimmed(offsets: Sequence[tuple[int, int]], text: str) -> np.ndarray:
    """Each token's characters without the spaces that some tokenizers count to them."""
    spans = np.array(offsets, np.int32).reshape(-1, 2)
    for token, (start, end) in enumerate(offsets):
        if start < end and (text[start].isspace() or text[end - 1].isspace()) and (inner := text[start:end].strip()):
            begin = start + text[start:end].index(inner[0])
            spans[token] = begin, begin + len(inner)
    return spans
