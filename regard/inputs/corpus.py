"""The parts of a data set: read from files, held out by hash, prepared once into a memory-mapped Corpus."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError, nearest
from regard.inputs.arrays import Corpus, Report, Sample, Skip, cached, unfit
from regard.inputs.files import Record, expand, find, records, unnamed_header
from regard.inputs.progress import Progress
from regard.inputs.text import Vocabulary

if TYPE_CHECKING:
    from regard.recipe import DataOptions

__all__ = [
    "Corpus", "Record", "Report", "Sample", "Skip", "file_of", "find", "notes", "part_of", "prefixes", "prepare",
    "prepare_samples", "read", "unfit",
]  # fmt: skip

PARTS = ("train", "validation", "test")


def part_of(value: str, validation: float, test: float) -> str:
    """The part a value belongs to, by its hash alone: the order of a file and the other samples do not matter."""
    place = int.from_bytes(hashlib.sha256(value.encode()).digest()[:8]) / 2**64
    # One from below, one from above: changing one fraction moves nothing in the other.
    return "validation" if place < validation else "test" if place >= 1 - test else "train"


def _fractions(data: "DataOptions") -> tuple[float, float]:
    validation, test = (part if isinstance(part, float) else 0.0 for part in (data.validation, data.test))
    if validation + test >= 1:
        raise UserError(f"data.validation = {validation} and data.test = {test} leave nothing to train on")
    return validation, test


def file_of(data: "DataOptions", part: str, beside: Path | None = None) -> Path:
    """Where a part's samples stand; a fraction stands in the train file."""
    if part not in PARTS:
        raise UserError(f"unknown part '{part}'{nearest(part, PARTS)}")
    name = getattr(data, part)
    name = data.train if isinstance(name, float) else name
    if not isinstance(name, str) or not name:
        raise UserError(f"data.{part} names no file")
    return find(name, beside)


def read(data: "DataOptions", part: str, beside: Path | None = None) -> Iterator[Record]:
    """Every sample of a part in the order of its file, also those `prepare` will skip."""
    path = file_of(data, part, beside)
    validation, test = _fractions(data)
    own = isinstance(getattr(data, part), str) and part != "train"  # a file of its own is taken whole
    for record in records(path, data):
        if own or part_of(record.group, validation, test) == part:
            yield record


def prefixes(data: "DataOptions", part: str = "train", beside: Path | None = None) -> list[str]:
    """The tokens "<value>" of the prefix column, which a tokenizer must know as `extra`."""
    if not data.prefix:
        return []
    return sorted({record.token for record in read(data, part, beside) if record.prefix})


def prepare(
    data: "DataOptions",
    part: str,
    vocabulary: Vocabulary,
    cache: Path,
    beside: Path | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """A part of the data as a Corpus: found in the cache when the same files, options and tokenizers were prepared."""
    hashes = _hashes(expand(file_of(data, part, beside)))
    fractions = _fractions(data)
    options = (data.source, data.target, data.columns, data.prefix, data.split_by, data.max_length, fractions, part)
    key = json.dumps([hashes, options])
    stream, told = read(data, part, beside), notes(data, part, beside)
    return cached(stream, key, hashes, vocabulary, cache, data.max_length, progress, told)


def notes(data: "DataOptions", part: str, beside: Path | None = None) -> list[str]:
    """What a reader of a part's file should know of how it is taken."""
    unnamed = unnamed_header(file_of(data, part, beside), data)
    return ["line 1 is taken as a sample: no header is named (data.source, data.target)"] if unnamed else []


def prepare_samples(
    samples: Iterable[Sample],
    key: str,
    vocabulary: Vocabulary,
    cache: Path,
    max_length: int = 256,
    progress: Progress | None = None,
) -> Corpus:
    """Generated samples as a Corpus; `key` says all that decides them (generator, seed, count)."""
    stream = (
        Record(sample.source, sample.target, "", "", f"{key}:{number}") for number, sample in enumerate(samples, 1)
    )
    named = json.dumps(["generated", key, max_length])
    return cached(stream, named, {}, vocabulary, cache, max_length, progress)


def _hashes(files: dict[str, Path]) -> dict[str, str]:
    """Each file's hash under its name; {de,en}/train.txt share one, so the column comes before it."""
    alike = len({path.name for path in files.values()}) < len(files)
    return {f"{column}/{path.name}" if alike else path.name: _hash_file(path) for column, path in files.items()}


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
