"""Semantic search: the texts of files with the highest cosine to a query. Reimers & Gurevych 2019, section 1.

    file ──▶ texts with locations ──▶ normalised embeddings, computed once and memory-mapped ──▶ best by cosine

Shapes: vectors (texts, width), locations (texts, 2): the index of the file, and the line, from 1.
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
from regard.tasks.embed.predict import EmbedPredictor
from regard.tasks.predictor import LoadedModel

FORMAT = "vectors 3"  # part of every key: increase it when what is written changes

CHUNK = 4096  # texts read, sorted by length and embedded at once

BAND = 1 << 16  # vectors compared at once

TABLES = (".csv", ".tsv", ".jsonl")
TEXTS = (".txt", ".md", ".rst", *TABLES)  # what is read of a folder


class Entry(NamedTuple):
    """A text and its location: the index of its file, and its line."""

    file: int
    line: int
    text: str


@dataclass(frozen=True)
class Hit:
    """A result of a query: its cosine, its location and its text."""

    score: float
    file: str
    line: int
    text: str


@dataclass(frozen=True)
class SearchResult:
    """The best texts for a query, best first."""

    query: str
    hits: list[Hit]


@dataclass(frozen=True)
class Source:
    """Files of texts: one per line, or a column of a table."""

    files: list[Path]
    column: str

    @classmethod
    def of(cls, name: str, column: str = "") -> "Source":
        path = Path(name).expanduser()
        files = _text_files(path) if path.is_dir() else list(expand(path := find(name)).values())
        if column and not any(map(_is_table, files)):
            raise UserError(f"--column {column}: {path} is read line by line; only {', '.join(TABLES)} have columns")
        return cls(files, column or "text")

    def entries(self) -> Iterator[Entry]:
        """Every text that is not blank, in order."""
        for index, file in enumerate(self.files):
            numbered = enumerate(lines(file), 1)
            if _is_table(file):
                table = rows(file, (), {"--column": self.column})
                numbered = ((int(row.location.rpartition(":")[2]), row.fields[self.column]) for row in table)
            yield from (Entry(index, line, text) for line, text in numbered if text.strip())

    def texts_at(self, locations: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """The texts at these locations."""
        entries = (entry for entry in self.entries() if (entry.file, entry.line) in locations)
        return {(entry.file, entry.line): entry.text for entry in islice(entries, len(locations))}


def _text_files(folder: Path) -> list[Path]:
    """The text files below a folder, in order; names that begin with a dot are left out."""
    inside = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    visible = (path for path in inside if not any(name.startswith(".") for name in path.parts))
    files = [folder / path for path in visible if path.name.removesuffix(".gz").endswith(TEXTS)]
    if not files:
        raise UserError(f"{folder}: the folder has no text files ({', '.join(TEXTS)})")
    return files


def _is_table(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(TABLES)


class Index(RaggedDataset):
    """Normalised embeddings on disk, and the locations of their texts."""

    def __init__(self, columns: Mapping[str, Column], facts: dict[str, Any]) -> None:
        super().__init__(columns, facts)
        self.vectors = columns["vectors"].values.reshape(-1, columns["vectors"].width)
        self.locations = columns["locations"].values.reshape(-1, 2)

    @classmethod
    def of(
        cls, model: LoadedModel, source: Source, truncate: bool = False, size: int = 32, quiet: bool = True
    ) -> "Index":
        """The embeddings of all texts, from the cache if the same model embedded the same files before."""
        key = [FORMAT, *fingerprint(model), source.column, str(truncate), *(hash_file(file) for file in source.files)]
        predictor: EmbedPredictor = model.predictor("embed")

        def write(writer: DatasetWriter) -> None:
            total = sum(1 for _ in source.entries())
            if not total:
                raise UserError(f"{source.files[0] if source.files else 'the pattern'}: no text to search in")
            writer.facts["truncated"] = 0
            with counted("embedding", total, quiet) as progress:
                for chunk in chunks(source.entries(), CHUNK):
                    rows = predictor.encode_inputs([entry.text for entry in chunk], truncate=True)
                    for entry, row in zip(chunk, rows, strict=True):
                        if row.truncated and not truncate:
                            raise UserError(
                                f"{source.files[entry.file]}:{entry.line}: longer than the model's context of "
                                f"{len(row.tokens)} tokens: split it into lines, or truncate such texts with --truncate"
                            )
                    writer.facts["truncated"] += sum(row.truncated for row in rows)
                    vectors = predictor.embed(rows, size, normalise=True, progress=progress)
                    if "vectors" not in writer.columns:
                        writer.add_column("vectors", Layout("float32", vectors.shape[1]))
                    writer["vectors"].extend_array(vectors)
                    writer["locations"].extend_array([(entry.file, entry.line) for entry in chunk])

        folder = cache_path(cache_folder() / "search", key)
        return prepare(folder, {"locations": Layout("int64", 2)}, write, cls, Report(unit="texts"))

    def nearest(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """The indices of each query's best texts and their cosines, both (queries, top), best first."""
        top = min(top, len(self.vectors))
        scores = np.empty((len(queries), 0), np.float32)
        indices = np.empty((len(queries), 0), np.int64)
        for start in range(0, len(self.vectors), BAND):
            cosines = queries @ self.vectors[start : start + BAND].T
            best = _top_indices(cosines, min(top, cosines.shape[1]))
            scores = np.concatenate([scores, np.take_along_axis(cosines, best, 1)], 1)
            indices = np.concatenate([indices, best + start], 1)
            best = _top_indices(scores, min(top, scores.shape[1]))
            scores = np.take_along_axis(scores, best, 1)
            indices = np.take_along_axis(indices, best, 1)
        return indices, scores


def _top_indices(scores: np.ndarray, count: int) -> np.ndarray:
    """The indices of the largest values of each row, largest first."""
    indices = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, indices, 1), axis=1, kind="stable")
    return np.take_along_axis(indices, order, 1)


def fingerprint(model: LoadedModel) -> list[str]:
    """What a model's embeddings depend on: its files, those of an adapter's base model, and the precision."""
    assert model.folder is not None
    folders = [model.folder]
    if adapter.is_adapter(model.folder):
        folders.append(adapter.base_of(model.folder).folder)
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    return [model.precision, *(hash_file(file) for file in files)]


Item = TypeVar("Item")


def chunks(stream: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`; the last may be shorter."""
    stream = iter(stream)
    while chunk := list(islice(stream, size)):
        yield chunk


def find_all(
    model: LoadedModel, source: Source, index: Index, queries: list[str], top: int, truncate: bool = False
) -> list[SearchResult]:
    """The best texts for each query."""
    predictor = model.predictor("embed")
    vectors = predictor.embed(predictor.encode_inputs(queries, truncate), normalise=True)
    indices, scores = index.nearest(vectors, top)
    best = [[(file, line) for file, line in index.locations[row].tolist()] for row in indices]
    texts = source.texts_at(set(chain.from_iterable(best)))
    results = []
    for query, locations, cosines in zip(queries, best, scores.tolist(), strict=True):
        hits = [
            Hit(cosine, str(source.files[file]), line, texts[file, line])
            for (file, line), cosine in zip(locations, cosines, strict=True)
        ]
        results.append(SearchResult(query, hits))
    return results


def refuse_empty(queries: list[str] | None) -> None:
    for index, query in enumerate(queries or (), 1):
        if not query.strip():
            raise UserError(f"QUERY {index} is empty: give a text to search for")
