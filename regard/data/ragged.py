"""Rows of different lengths on disk, written one after another and memory-mapped.

<name>.<what>      the rows' values, end to end
<name>.offsets     where each row begins, and where the last ends: row i is values[offsets[i] : offsets[i + 1]]
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.cache import settle


class Ragged:
    """Rows to be read; only what is asked for is loaded. Bytes are text."""

    def __init__(self, path: Path, dtype: str = "uint8"):
        self.values = np.memmap(path, dtype=dtype, mode="r")
        self.offsets = np.memmap(path.with_suffix(".offsets"), dtype=np.int64, mode="r")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self.values[self.offsets[index] : self.offsets[index + 1]])

    def text(self, index: int) -> str:
        return self[index].tobytes().decode()

    def whole(self, rows: int) -> bool:
        """Whether both files are as long as they should be for so many rows."""
        return len(self) == rows and len(self.values) == self.offsets[-1]


class RaggedWriter:
    """Appends rows."""

    def __init__(self, path: Path, dtype: str = "uint8"):
        self.dtype = dtype
        self._values, self._offsets = path.open("wb"), path.with_suffix(".offsets").open("wb")
        self._end = 0
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def __enter__(self) -> "RaggedWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._values.close()
        self._offsets.close()

    def extend(self, rows: Sequence[Sequence[int] | np.ndarray]) -> None:
        for row in rows:
            self._values.write(np.asarray(row, self.dtype).tobytes())
        self._add([len(row) for row in rows])

    def extend_texts(self, texts: Iterable[str]) -> None:
        found = [text.encode() for text in texts]
        self._values.write(b"".join(found))
        self._add([len(text) for text in found])

    def _add(self, lengths: list[int]) -> None:
        ends: Any = self._end + np.cumsum(lengths, dtype=np.int64)
        self._offsets.write(ends.tobytes())
        self._end = int(ends[-1]) if len(ends) else self._end

    def settle(self) -> None:
        settle(self._values)
        settle(self._offsets)
