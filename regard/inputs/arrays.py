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

from regard.errors import UserError
from regard.inputs.files import Record
from regard.inputs.prepared import Report, narrowest, opened, place_of, read_facts, settle, unfinished, write_facts
from regard.inputs.progress import Progress, shown

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
    if blank:
        return "both sides empty" if len(blank) == 2 else f"empty {blank[0]}"
    if max(len(record.source), len(record.target)) > longest:
        return f"longer than {longest} characters"
    return None


class Side:
    """One side's tokens: sample i is tokens[offsets[i] : offsets[i + 1]]."""

    def __init__(self, folder: Path, name: str, dtype: str):
        self.tokens = np.memmap(folder / f"{name}.tokens", dtype=dtype, mode="r")
        self.offsets = np.memmap(folder / f"{name}.offsets", dtype=np.int64, mode="r")
        self.lengths = np.memmap(folder / f"{name}.lengths", dtype=np.int32, mode="r")

    def whole(self, samples: int) -> bool:
        """Whether each file is as long as the others say."""
        counts = len(self.offsets) - 1, len(self.lengths), len(self.tokens)
        return counts == (samples, samples, self.offsets[-1])

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self.tokens[self.offsets[index] : self.offsets[index + 1]])


class Corpus:
    """Prepared samples, memory-mapped: token ids without begin and end, their lengths, and the raw text."""

    def __init__(self, folder: Path):
        facts = read_facts(folder / "corpus.json")
        self.report = Report.of(facts["report"])
        self.hashes: dict[str, str] = facts["hashes"]
        self._sides = [Side(folder, name, facts["dtypes"][name]) for name in Sample._fields]
        self._text = np.memmap(folder / "text.bytes", dtype=np.uint8, mode="r")
        self._places = np.memmap(folder / "text.offsets", dtype=np.int64, mode="r")

    @property
    def source_lengths(self) -> np.memmap:
        return self._sides[0].lengths

    @property
    def target_lengths(self) -> np.memmap:
        return self._sides[1].lengths

    @property
    def whole(self) -> bool:
        """Whether no file was cut, as a full disk or a broken copy leaves it."""
        text = len(self._places) == 2 * len(self) + 1 and len(self._text) == self._places[-1]
        return text and all(side.whole(len(self)) for side in self._sides)

    def __len__(self) -> int:
        return self.report.kept

    def source(self, index: int) -> np.ndarray:
        return self._sides[0][index]

    def target(self, index: int) -> np.ndarray:
        return self._sides[1][index]

    def text(self, index: int) -> Sample:
        start, middle, end = self._places[2 * index : 2 * index + 3]
        return Sample(self._text[start:middle].tobytes().decode(), self._text[middle:end].tobytes().decode())


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
    folder = place_of(cache, parts)
    if found := opened(folder, Corpus):
        return found
    with unfinished(folder) as place, Writer(place, vocabulary, max_length, notes) as writer:
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
            name: narrowest(tokenizer.size)
            for name, tokenizer in zip(Sample._fields, (vocabulary.source, vocabulary.target), strict=True)
        }
        self._files: dict[str, BinaryIO] = {}
        self._ends: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Writer":
        names = [f"{side}.{what}" for side in Sample._fields for what in ("tokens", "lengths", "offsets")]
        for name in [*names, "text.bytes", "text.offsets"]:
            self._files[name] = self._stack.enter_context((self.folder / name).open("wb"))
        for name in (*Sample._fields, "text"):
            self._ends[name] = 0
            self._append(f"{name}.offsets", np.zeros(1, np.int64))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _append(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(values.tobytes())

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
        texts = [text.encode() for row in kept for text in row[2]]
        self._files["text.bytes"].write(b"".join(texts))
        self._write_offsets("text", [len(text) for text in texts])

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
        lengths = [len(row) for row in rows]
        self._append(f"{name}.tokens", np.array([token for row in rows for token in row], self._dtypes[name]))
        self._append(f"{name}.lengths", np.array(lengths, np.int32))
        self._write_offsets(name, lengths)

    def _write_offsets(self, name: str, lengths: list[int]) -> None:
        ends = self._ends[name] + np.cumsum(lengths, dtype=np.int64)
        self._append(f"{name}.offsets", ends)
        self._ends[name] = int(ends[-1]) if len(ends) else self._ends[name]

    def finish(self, hashes: dict[str, str]) -> None:
        """Puts everything on the disk, the report last; a corpus without a sample is an error."""
        if not self.report.kept:
            raise UserError(f"no sample left to use: {self.report}")
        for file in self._files.values():
            settle(file)
        facts = {"report": asdict(self.report), "hashes": hashes, "dtypes": self._dtypes}
        write_facts(self.folder / "corpus.json", facts)
