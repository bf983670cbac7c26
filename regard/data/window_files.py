"""What prepared texts have in common that are read window by window: their table, their lengths, what became of them.

<folder>/   windows.table (a row a window), windows.lengths (its tokens with what is put round them)
"""

from pathlib import Path
from typing import Any

import numpy as np

from regard.data.cache import Report
from regard.data.ragged import Ragged
from regard.text.special_tokens import SpecialTokens


class WindowFiles:
    """Windows, memory-mapped; `facts` are those of its folder, and say how many there are."""

    def __init__(self, folder: Path, facts: dict[str, Any], windows: int, frame: SpecialTokens, padding: int):
        self.report, self.hashes = Report.of(facts["report"]), dict[str, str](facts["hashes"])
        self.frame, self.padding = frame, padding
        self._windows, self._table = windows, Ragged(folder / "windows.table", "int32")
        self.lengths: np.ndarray = np.memmap(folder / "windows.lengths", dtype=np.int32, mode="r")

    def __len__(self) -> int:
        return self._windows

    @property
    def source_lengths(self) -> np.ndarray:
        return self.lengths

    @property
    def target_lengths(self) -> np.ndarray:
        return self.lengths

    @property
    def whole(self) -> bool:
        """Whether no file was cut."""
        return self._table.whole(self._windows) and len(self.lengths) == self._windows
