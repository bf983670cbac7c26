"""Pairs of texts: read from files, held out by hash, prepared once into a memory-mapped Corpus."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.cache import Report, Skip, hash_file
from regard.data.files import Record, expand, find, records, unnamed_header
from regard.data.pairs import Corpus, Sample, cached, unfit
from regard.data.splits.hashed import file_of, fractions, held, part_of
from regard.progress import Progress
from regard.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

__all__ = [
    "Corpus", "Record", "Report", "Sample", "Skip", "file_of", "find", "notes", "part_of", "prefixes", "prepare",
    "prepare_samples", "read", "unfit",
]  # fmt: skip


def read(data: "DataOptions", part: str, beside: Path | None = None) -> Iterator[Record]:
    """Every sample of a part in the order of its file, also those `prepare` will skip."""
    yield from held(records(file_of(data, part, beside), data), data, part)


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
    options = data.source, data.target, data.columns, data.prefix, data.split_by, data.max_length, fractions(data), part
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
    return {f"{column}/{path.name}" if alike else path.name: hash_file(path) for column, path in files.items()}
