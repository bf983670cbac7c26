"""Samples → token arrays on disk, written once and memory-mapped: memory does not grow with their number.

cache/<key>/   source.tokens source.offsets source.lengths, the same for target,
               text.bytes text.offsets (the raw text), corpus.json (the report, the files' hashes)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np

from regard.data.cache import (
    Report,
    atomic_folder,
    cache_path,
    open_cached,
    read_facts,
    settle,
    smallest_uint,
    write_facts,
)
from regard.data.files import Record
from regard.data.ragged import Ragged, RaggedWriter
from regard.errors import UserError
from regard.progress import Progress, shown

FORMAT = "1"  # part of every key: raise it when the files change

CHUNK = 2048  # samples encoded at once

CHARACTERS_PER_TOKEN = 100  # a text of more than this times max_length is skipped before it is cut into tokens


class Coder(Protocol):
    """What makes tokens of one side's texts."""

    @property
    def size(self) -> int: ...

    @property
    def table(self) -> Mapping[str, int]: ...

    def encode_many(self, texts: list[str]) -> list[list[int]]: ...

    def content(self) -> str: ...


class Coders(Protocol):
    """What makes tokens of both sides: a vocabulary."""

    @property
    def source(self) -> Coder: ...

    @property
    def target(self) -> Coder: ...


class Sample(NamedTuple):
    """One pair of texts."""

    source: str
    target: str

    @classmethod
    def of(cls, record: Record) -> "Sample":
        """As a model reads it: the prefix stands in front."""
        return cls(f"{record.token} {record.source}" if record.prefix else record.source, record.target)


def unfit(record: Record, max_length: int) -> str | None:
    """Why a sample cannot be used as it was read: it need not be cut into tokens to see that."""
    blank = [side for side in Sample._fields if not getattr(record, side).strip()]
    longest = CHARACTERS_PER_TOKEN * max_length
    if record.left_out:
        return record.left_out
    if blank:
        return "both sides empty" if len(blank) == 2 else f"empty {blank[0]}"
    if max(len(record.source), len(record.target)) > longest:
        return f"longer than {longest} characters"
    return None


class Side(Ragged):
    """One side's tokens, and how many each sample has."""

    def __init__(self, folder: Path, name: str, dtype: str):
        super().__init__(folder / f"{name}.tokens", dtype)
        self.lengths = np.memmap(folder / f"{name}.lengths", dtype=np.int32, mode="r")

    def whole(self, rows: int) -> bool:
        return super().whole(rows) and len(self.lengths) == rows


class Corpus:
    """Prepared samples, memory-mapped: token ids without begin and end, their lengths, and the raw text."""

    def __init__(self, folder: Path):
        facts = read_facts(folder / "corpus.json")
        self.report = Report.of(facts["report"])
        self.hashes: dict[str, str] = facts["hashes"]
        self._sides = [Side(folder, name, facts["dtypes"][name]) for name in Sample._fields]
        self._text = Ragged(folder / "text.bytes")

    @property
    def source_lengths(self) -> np.memmap:
        return self._sides[0].lengths

    @property
    def target_lengths(self) -> np.memmap:
        return self._sides[1].lengths

    @property
    def target_values(self) -> np.memmap:
        """The targets' tokens, end to end."""
        return self._sides[1].values

    @property
    def whole(self) -> bool:
        """Whether no file was cut, as a full disk or a broken copy leaves it."""
        return self._text.whole(2 * len(self)) and all(side.whole(len(self)) for side in self._sides)

    def __len__(self) -> int:
        return self.report.kept

    def source(self, index: int) -> np.ndarray:
        return self._sides[0][index]

    def target(self, index: int) -> np.ndarray:
        return self._sides[1][index]

    def text(self, index: int) -> Sample:
        return Sample(self._text.text(2 * index), self._text.text(2 * index + 1))


def cached(
    records: Iterable[Record],
    key: str,
    hashes: dict[str, str],
    vocabulary: Coders,
    cache: Path,
    max_length: int,
    progress: Progress | None = None,
    notes: Sequence[str] = (),
) -> Corpus:
    """The Corpus of this key and these tokenizers: opened if there, else written beside and renamed when whole."""
    parts = [FORMAT, key, vocabulary.source.content(), vocabulary.target.content()]
    folder = cache_path(cache, parts)
    if found := open_cached(folder, Corpus):
        return found
    with atomic_folder(folder) as place, Writer(place, vocabulary, max_length, notes) as writer:
        with shown("preparing: {} samples", progress) as show:
            writer.write(iter(records), show)
        writer.finish(hashes)
    return Corpus(folder)


class Writer:
    """Appends samples to the arrays of a folder, chunk by chunk."""

    def __init__(self, folder: Path, vocabulary: Coders, max_length: int, notes: Sequence[str] = ()):
        self.folder = folder
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.report = Report(notes=list(notes))
        self._known = vocabulary.source.table
        self._dtypes = {
            name: smallest_uint(tokenizer.size)
            for name, tokenizer in zip(Sample._fields, (vocabulary.source, vocabulary.target), strict=True)
        }
        self._rows: dict[str, RaggedWriter] = {}
        self._lengths: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Writer":
        enter = self._stack.enter_context
        for name, dtype in self._dtypes.items():
            self._rows[name] = enter(RaggedWriter(self.folder / f"{name}.tokens", dtype))
            self._lengths[name] = enter((self.folder / f"{name}.lengths").open("wb"))
        self._rows["text"] = enter(RaggedWriter(self.folder / "text.bytes"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, records: Iterator[Record], show: Progress) -> None:
        while chunk := list(islice(records, CHUNK)):
            self.report.read += len(chunk)
            kept = [record for record in chunk if not self._unfit(record)]
            self._write_chunk([Sample.of(record) for record in kept], [record.place for record in kept])
            show(self.report.read)

    def _unfit(self, record: Record) -> bool:
        """Counts a sample that cannot be used as it was read."""
        reason = unfit(record, self.max_length)
        if reason:
            self.report.skip(reason, record.place)
        elif record.prefix and record.token not in self._known:
            raise UserError(f"{record.place}: the prefix {record.token} is no token of this vocabulary")
        return reason is not None

    def _write_chunk(self, samples: list[Sample], places: list[str]) -> None:
        sources = self.vocabulary.source.encode_many([sample.source for sample in samples])
        targets = self.vocabulary.target.encode_many([sample.target for sample in samples])
        kept = [
            row for row in zip(sources, targets, samples, places, strict=True) if self._fits(row[0], row[1], row[3])
        ]
        self.report.kept += len(kept)
        self._write_side("source", [row[0] for row in kept])
        self._write_side("target", [row[1] for row in kept])
        self._rows["text"].extend_texts(text for row in kept for text in row[2])

    def _fits(self, source: list[int], target: list[int], place: str) -> bool:
        """Whether a sample may stay now that it is tokens; counts it if not."""
        if not (source and target):
            self.report.skip("nothing left after normalisation", place)
        elif max(len(source), len(target)) > self.max_length:
            self.report.skip(f"longer than {self.max_length} tokens", place)
        else:
            return True
        return False

    def _write_side(self, name: str, rows: list[list[int]]) -> None:
        self._rows[name].extend(rows)
        self._lengths[name].write(np.array([len(row) for row in rows], np.int32).tobytes())

    def finish(self, hashes: dict[str, str]) -> None:
        """Puts everything on the disk, the report last; a corpus without a sample is an error."""
        if not self.report.kept:
            long = any(reason.startswith("longer") for reason in self.report.skipped)
            told = "; raise data.max_length, or read texts to be labelled in segments (data.segment)" if long else ""
            raise UserError(f"no sample left to use: {self.report}{told}")
        for rows in self._rows.values():
            rows.settle()
        for file in self._lengths.values():
            settle(file)
        facts = {"report": asdict(self.report), "hashes": hashes, "dtypes": self._dtypes}
        write_facts(self.folder / "corpus.json", facts)
