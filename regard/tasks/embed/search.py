"""`regard search`: the texts of a file that mean nearly what is asked. Reimers & Gurevych 2019, section 1.

    file ──▶ texts, each with its place ──▶ vectors of length one, made once and memory-mapped ──▶ best by cosine

Shapes: vectors (texts, width), places (texts, 2): the number of a file, and of a line in it, from 1 on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from regard.data.cache import Report, cache_folder, cache_path, hash_file
from regard.data.files import expand, find, lines, rows
from regard.data.ragged import Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.errors import UserError
from regard.interop import peft as adapter
from regard.progress import counted

FORM = "vectors 2"  # of what is kept; another number where it changes

AT_ONCE = 4096  # texts that are read, sorted by length and embedded before the next are

BAND = 1 << 16  # vectors that are compared at a time

TABLES = (".csv", ".tsv", ".jsonl")


class Entry(NamedTuple):
    """A text and where it stands."""

    file: int
    line: int
    text: str


@dataclass(frozen=True)
class Hit:
    """A text that was found: its cosine to what was asked, where it stands, and its words."""

    score: float
    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Found:
    """The best for one query, best first."""

    query: str
    hits: list[Hit]


@dataclass(frozen=True)
class Source:
    """Files of texts: a line each, or a column of a table."""

    files: list[Path]
    column: str

    @classmethod
    def of(cls, name: str, column: str = "") -> "Source":
        path = find(name)
        files = list(expand(path).values())
        tables = [file for file in files if _is_table(file)]
        if column and not tables:
            raise UserError(f"--column {column}: {path} is read a line each; columns are those of {', '.join(TABLES)}")
        return cls(files, column or "text")

    def entries(self) -> Iterator[Entry]:
        """Every text that is not blank, in order."""
        for number, file in enumerate(self.files):
            for line, text in self._texts(file):
                if text.strip():
                    yield Entry(number, line, text)

    def _texts(self, file: Path) -> Iterator[tuple[int, str]]:
        if not _is_table(file):
            return enumerate(lines(file), 1)
        return self._column(file)

    def _column(self, file: Path) -> Iterator[tuple[int, str]]:
        for row in rows(file, (), {"--column": self.column}):
            yield int(row.location.rpartition(":")[2]), row.fields[self.column]

    def at(self, places: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """The texts at some places."""
        entries = (entry for entry in self.entries() if (entry.file, entry.line) in places)
        return {(entry.file, entry.line): entry.text for entry in islice(entries, len(places))}


def _is_table(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(TABLES)


class Index(RaggedDataset):
    """Vectors of length one on disk, and where the text of each stands."""

    def __init__(self, columns: Mapping[str, Column], facts: dict[str, Any]) -> None:
        super().__init__(columns, facts)
        self.vectors = columns["vectors"].values.reshape(-1, columns["vectors"].width)
        self.places = columns["places"].values.reshape(-1, 2)

    @classmethod
    def of(cls, model: Any, source: Source, truncate: bool = False, size: int = 32, quiet: bool = True) -> "Index":
        """The vectors of all texts: as they were made before of the same files by the same model, else made now."""
        words = [FORM, *fingerprint(model), source.column, str(truncate), *(hash_file(file) for file in source.files)]
        folder = cache_path(cache_folder() / "search", words)

        def write(writer: DatasetWriter) -> None:
            make(writer, model, source, truncate, size, quiet)

        return prepare(folder, {"places": Layout("int64", 2)}, write, cls, Report(unit="texts"))

    def nearest(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of each query's best texts and their cosines, both (queries, top), best first."""
        top = min(top, len(self.vectors))
        scores, numbers = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        for start in range(0, len(self.vectors), BAND):
            some = queries @ self.vectors[start : start + BAND].T
            best = _largest(some, min(top, some.shape[1]))
            scores = np.concatenate([scores, np.take_along_axis(some, best, 1)], 1)
            numbers = np.concatenate([numbers, best + start], 1)
            best = _largest(scores, min(top, scores.shape[1]))
            scores, numbers = np.take_along_axis(scores, best, 1), np.take_along_axis(numbers, best, 1)
        return numbers, scores


def _largest(scores: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest of each row, largest first."""
    some = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, order, 1)


def fingerprint(model: Any) -> list[str]:
    """What decides a model's vectors: its files, the base that an adapter is added to, and how finely it computes."""
    folders = [model.folder] + ([adapter.base_of(model.folder).folder] if adapter.is_adapter(model.folder) else [])
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    return [model.precision, *(hash_file(file) for file in files)]


def make(writer: DatasetWriter, model: Any, source: Source, truncate: bool, size: int, quiet: bool) -> None:
    """Embed every text and write the vectors."""
    total = sum(1 for _ in source.entries())
    if not total:
        raise UserError(f"{source.files[0] if source.files else 'the pattern'}: no text to search in")
    predictor = model.predictor("embed")
    writer.facts["cut"] = 0
    with counted("embedding", total, quiet) as progress:
        for some in chunks(source.entries(), AT_ONCE):
            rows = readings(predictor, source, some, truncate)
            writer.facts["cut"] += sum(row.truncated for row in rows)
            vectors = np.asarray(predictor.embed(rows, size, normalise=True, progress=progress))
            if "vectors" not in writer.columns:
                writer.add_column("vectors", Layout("float32", vectors.shape[1]))
            writer["vectors"].extend_array(vectors)
            writer["places"].extend_array([(entry.file, entry.line) for entry in some])


def readings(predictor: Any, source: Source, some: list[Entry], truncate: bool) -> list[Any]:
    """Texts as the model is given them; one that is too long is refused by its place, or cut."""
    found = predictor.encode_inputs([entry.text for entry in some], truncate=True)
    for entry, row in zip(some, found, strict=True):
        if row.truncated and not truncate:
            raise UserError(
                f"{source.files[entry.file]}:{entry.line}: longer than the {len(row.tokens)} tokens that the model "
                "reads; break it into lines, or cut such texts with --truncate"
            )
    return found


Some = TypeVar("Some")


def chunks(stream: Iterable[Some], size: int) -> Iterator[list[Some]]:
    """So many at a time."""
    stream = iter(stream)
    while some := list(islice(stream, size)):
        yield some


def find_all(
    model: Any, source: Source, index: Index, queries: list[str], top: int, truncate: bool = False
) -> list[Found]:
    """The best texts for each query."""
    predictor = model.predictor("embed")
    asked = predictor.embed(predictor.encode_inputs(queries, truncate), normalise=True)
    numbers, scores = index.nearest(asked, top)
    best = [[(int(file), int(line)) for file, line in index.places[row]] for row in numbers]
    texts = source.at(set(chain.from_iterable(best)))
    found = []
    for query, places, cosines in zip(queries, best, scores.tolist(), strict=True):
        hits = [
            Hit(score, str(source.files[at[0]]), at[1], texts[at]) for at, score in zip(places, cosines, strict=True)
        ]
        found.append(Found(query, hits))
    return found


def refuse_empty(queries: list[str] | None) -> None:
    for number, query in enumerate(queries or (), 1):
        if not query.strip():
            raise UserError(f"QUERY {number} is empty: say what is looked for")
