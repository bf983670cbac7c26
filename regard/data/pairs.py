"""Pairs of texts → token ids on disk: the prepared dataset of tasks that map a source to a target."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from regard.data.cache import Facts, Report, cache_path, smallest_uint
from regard.data.files import Record
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.errors import UserError
from regard.progress import shown

FORMAT = "pairs 2"  # part of every key: increase it when what is written changes

CHUNK = 2048  # samples encoded at once

CHARACTERS_PER_TOKEN = 100  # a text of more than this times max_length is skipped before it is tokenized


Truncate = Callable[[list[int], int], list[int]]  # tokens, maximum length → at most as many tokens


class Encoder(Protocol):
    """Converts the texts of one side to token ids."""

    @property
    def size(self) -> int: ...

    @property
    def table(self) -> Mapping[str, int]: ...

    def encode_many(self, texts: list[str], /) -> list[list[int]]: ...

    def content(self) -> str: ...


class Encoders(Protocol):
    """The encoders of both sides, such as a vocabulary."""

    @property
    def source(self) -> Encoder: ...

    @property
    def target(self) -> Encoder: ...


class Sample(NamedTuple):
    """One pair of texts."""

    source: str
    target: str

    @classmethod
    def of(cls, record: Record) -> "Sample":
        """The texts as inputs of the model: the prefix becomes the first token of the source."""
        return cls(f"{record.token} {record.source}" if record.prefix else record.source, record.target)


def reason_to_skip(record: Record, max_length: int) -> str | None:
    """Why a sample cannot be used, as far as that is known without tokenizing it; `max_length` 0 is no limit."""
    blank = [side for side in Sample._fields if not getattr(record, side).strip()]
    if record.left_out:
        return record.left_out
    if blank:
        return "both sides empty" if len(blank) == 2 else f"empty {blank[0]}"
    max_characters = CHARACTERS_PER_TOKEN * max_length
    if max_length and max(len(record.source), len(record.target)) > max_characters:
        return f"longer than {max_characters} characters"
    return None


class PairDataset(RaggedDataset):
    """Prepared pairs: token ids without begin and end, their lengths, and the texts."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        super().__init__(columns, facts)
        self.source_lengths = columns["source_lengths"].values
        self.target_lengths = columns["target_lengths"].values
        self.target_values = columns["target"].values  # the targets' tokens, end to end

    def __len__(self) -> int:
        return self.report.kept

    def source(self, index: int) -> np.ndarray:
        return self.columns["source"][index]

    def target(self, index: int) -> np.ndarray:
        return self.columns["target"][index]

    def text(self, index: int) -> Sample:
        text = self.columns["text"]
        return Sample(text.text(2 * index), text.text(2 * index + 1))


def prepare_pairs(
    records: Iterable[Record],
    key: Sequence[str],
    encoders: Encoders,
    cache: Path,
    max_length: int,
    report: Report,
    hashes: dict[str, str] | None = None,
    truncate: Truncate | None = None,
) -> PairDataset:
    """The dataset of these records; `key` is all that determines them besides the encoders.

    A source that is too long is skipped, or shortened by `truncate`.
    """
    folder = cache_path(cache, [FORMAT, *key, str(max_length), encoders.source.content(), encoders.target.content()])
    layouts = {"source": Layout(smallest_uint(encoders.source.size)), "source_lengths": SCALAR, "text": TEXT}
    layouts |= {"target": Layout(smallest_uint(encoders.target.size)), "target_lengths": SCALAR}

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes or {}
        stream = iter(records)
        with shown("preparing: {} samples") as show:
            while chunk := list(islice(stream, CHUNK)):
                _write_chunk(writer, chunk, encoders, max_length, truncate)
                show(report.read)
        if not report.kept:
            too_long = any(reason.startswith("longer") for reason in report.skipped)
            hint = "; raise data.max_length, or for classification set data.truncate = true or data.segment_length"
            raise UserError(f"no sample left to use: {report}{hint if too_long else ''}")

    return prepare(folder, layouts, write, PairDataset, report)


def _write_chunk(
    writer: DatasetWriter, chunk: list[Record], encoders: Encoders, max_length: int, truncate: Truncate | None
) -> None:
    report = writer.report
    report.read += len(chunk)
    usable = []
    for record in chunk:
        if reason := reason_to_skip(record, 0 if truncate else max_length):
            report.skip(reason, record.location)
        elif record.prefix and record.token not in encoders.source.table:
            raise UserError(f"{record.location}: unknown prefix {record.token}: the vocabulary has no such token")
        else:
            usable.append(record)
    samples = [Sample.of(record) for record in usable]
    sources = encoders.source.encode_many([sample.source for sample in samples])
    targets = encoders.target.encode_many([sample.target for sample in samples])
    if truncate:
        report.truncated += sum(len(source) > max_length for source in sources)
        sources = [truncate(source, max_length) for source in sources]
    kept = []
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if not (source and target):
            report.skip("nothing left after normalisation", usable[index].location)
        elif max(len(source), len(target)) > max_length:
            report.skip(f"longer than {max_length} tokens", usable[index].location)
        else:
            kept.append(index)
    report.kept += len(kept)
    for name, rows in (("source", sources), ("target", targets)):
        writer[name].extend([rows[index] for index in kept])
        writer[f"{name}_lengths"].extend_array([len(rows[index]) for index in kept])
    writer["text"].extend_texts(text for index in kept for text in samples[index])
