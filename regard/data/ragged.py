"""A prepared dataset: columns of rows on disk, written once and memory-mapped, so that memory does not grow with it.

<folder>/   <column>.values     the rows' values, end to end
            <column>.offsets    row i is values[offsets[i] : offsets[i + 1]]; not for columns of a fixed width
            dataset.json        the columns, the report, the hashes of the files that were read, and further facts

Text is stored as UTF-8 in a column of bytes.
"""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from regard.data.cache import Facts, Report, atomic_folder

Row = Sequence[int] | np.ndarray


class Layout(NamedTuple):
    """The type of a column's values, and how many each row has; 0 if rows differ in length."""

    dtype: str = "uint8"
    width: int = 0


TEXT = Layout("uint8")

SCALAR = Layout("int32", 1)


class Column:
    """The rows of one column; only those that are read are loaded."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray | None, width: int):
        self.values = values
        self.offsets = offsets
        self.width = width

    def __len__(self) -> int:
        return len(self.values) // self.width if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if self.offsets is None:
            return np.asarray(self.values[index * self.width : (index + 1) * self.width])
        return np.asarray(self.values[self.offsets[index] : self.offsets[index + 1]])

    def text(self, index: int) -> str:
        return self[index].tobytes().decode()


class RaggedDataset:
    """Columns by name, and what is known about how they were prepared."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        self.columns = columns
        self.facts = facts
        self.report = Report.of(facts["report"])
        self.hashes: dict[str, str] = facts["hashes"]


D = TypeVar("D", bound=RaggedDataset)

Open = Callable[[Mapping[str, Column], Facts], D]


class ColumnWriter:
    """Appends rows to a column."""

    def __init__(self, layout: Layout, values: BinaryIO, offsets: BinaryIO | None):
        self.layout = layout
        self.rows = 0
        self.values = values
        self.offsets = offsets
        self._end = 0
        if offsets is not None:
            offsets.write(np.zeros(1, np.int64).tobytes())

    def extend(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.values.write(np.asarray(row, self.layout.dtype).tobytes())
        self.rows += len(rows)
        if self.offsets is not None and rows:
            offsets = np.cumsum([len(row) for row in rows], dtype=np.int64) + self._end
            self.offsets.write(offsets.tobytes())
            self._end = int(offsets[-1])

    def extend_array(self, values: ArrayLike) -> None:
        """Rows of a fixed width, as one array."""
        array = np.asarray(values, self.layout.dtype)
        self.values.write(array.tobytes())
        self.rows += array.size // self.layout.width

    def extend_texts(self, texts: Iterable[str]) -> None:
        self.extend([np.frombuffer(text.encode(), np.uint8) for text in texts])


class DatasetWriter:
    """The columns of a dataset being written; `report`, `hashes` and `facts` are saved with them."""

    def __init__(self, layouts: Mapping[str, Layout], create: Callable[[str], BinaryIO], report: Report):
        self.report = report
        self.hashes: dict[str, str] = {}
        self.facts: Facts = {}
        self.columns: dict[str, ColumnWriter] = {}
        self._create = create
        for name, layout in layouts.items():
            self.add_column(name, layout)

    def add_column(self, name: str, layout: Layout) -> None:
        offsets = None if layout.width else self._create(f"{name}.offsets")
        self.columns[name] = ColumnWriter(layout, self._create(f"{name}.values"), offsets)

    def __getitem__(self, name: str) -> ColumnWriter:
        return self.columns[name]

    def description(self) -> Facts:
        columns = {name: [*column.layout, column.rows] for name, column in self.columns.items()}
        return self.facts | {"columns": columns, "report": asdict(self.report), "hashes": self.hashes}


def prepare(
    folder: Path, layouts: Mapping[str, Layout], write: Callable[[DatasetWriter], None], kind: Open[D], report: Report
) -> D:
    """The dataset of a folder: opened if it was prepared before, else written by `write`, aside and then renamed."""
    if folder.exists():
        try:
            return _open(folder, kind)
        except (OSError, ValueError, KeyError, TypeError, IndexError):  # it is damaged
            shutil.rmtree(folder, ignore_errors=True)
    with atomic_folder(folder) as tmp_folder, ExitStack() as stack:
        files: list[BinaryIO] = []

        def create(name: str) -> BinaryIO:
            files.append(stack.enter_context((tmp_folder / name).open("wb")))
            return files[-1]

        writer = DatasetWriter(layouts, create, report)
        write(writer)
        description = create("dataset.json")
        description.write(json.dumps(writer.description(), indent=2, ensure_ascii=False).encode())
        for file in files:  # written to the disk, so that the rename cannot expose an empty one
            file.flush()
            os.fsync(file.fileno())
    return _open(folder, kind)


def in_memory(
    layouts: Mapping[str, Layout], write: Callable[[DatasetWriter], None], kind: Open[D], report: Report
) -> D:
    """The same dataset without a folder, for a few inputs."""
    buffers: dict[str, io.BytesIO] = {}
    writer = DatasetWriter(layouts, lambda name: buffers.setdefault(name, io.BytesIO()), report)
    write(writer)

    return _dataset(writer.description(), lambda name, dtype: np.frombuffer(buffers[name].getvalue(), dtype), kind)


def _open(folder: Path, kind: Open[D]) -> D:
    """A dataset that was written completely; a file that is missing or truncated is an OSError or a ValueError."""

    def array(name: str, dtype: str) -> np.ndarray:
        path = folder / name
        empty = path.stat().st_size == 0  # which cannot be mapped
        return np.zeros(0, dtype) if empty else np.memmap(path, dtype=dtype, mode="r")

    return _dataset(json.loads((folder / "dataset.json").read_text(encoding="utf-8")), array, kind)


def _dataset(facts: Facts, array: Callable[[str, str], np.ndarray], kind: Open[D]) -> D:
    """The dataset of these facts; `array` gives a file's values as a type."""
    columns = {}
    for name, (dtype, width, rows) in facts["columns"].items():
        values = array(f"{name}.values", dtype)
        offsets = None if width else array(f"{name}.offsets", "int64")
        columns[name] = Column(values, offsets, width)
        if len(columns[name]) != rows or len(values) != (rows * width if offsets is None else offsets[-1]):
            raise ValueError(f"the column '{name}' is truncated")
    return kind(columns, facts)
