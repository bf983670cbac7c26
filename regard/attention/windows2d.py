"""Attention within windows of an image, and relative positions in them. Liu et al. 2021, sections 3.2 and 3.3.

    grid of cells ─▶ shift ─▶ windows, each a sequence of its own ─▶ attention ─▶ shift back

A shifted grid wraps around: cells from opposite sides of the image, which meet in one window, do not attend to each
other. Records show the attention over the cells of the image, not over the positions of windows.

Shapes, throughout:
    x        (batch, rows, columns, width)
    windows  (batch · windows, size², width)
    cells    (windows, size²)                   the cell of the grid, row by row, at each position of each window
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.masks import Bias, Rule
from regard.attention.recording import AttentionRecord


@dataclass(frozen=True)
class Windows:
    """Windows of size × size cells over a grid, shifted down and to the right by `shift` cells."""

    rows: int  # of the grid, a multiple of the size
    columns: int
    size: int
    shift: int = 0

    @classmethod
    def over(cls, rows: int, columns: int, size: int, shift: int) -> "Windows":
        """Over a grid of any size: padded to full windows; one window covers a grid that is not larger than it."""
        if min(rows, columns) <= size:
            size, shift = min(rows, columns), 0
        return cls(rows + -rows % size, columns + -columns % size, size, shift)

    @property
    def count(self) -> int:
        return self.rows * self.columns // self.size**2

    def partition(self, x: Tensor) -> Tensor:
        """The windows of a grid, which is padded with zeros below and on the right."""
        x = F.pad(x, (0, 0, 0, self.columns - x.size(2), 0, self.rows - x.size(1)))
        x = x.roll((-self.shift, -self.shift), (1, 2)) if self.shift else x
        x = x.unflatten(2, (-1, self.size)).unflatten(1, (-1, self.size)).transpose(2, 3)
        return x.reshape(-1, self.size**2, x.size(-1))

    def merge(self, windows: Tensor, rows: int, columns: int) -> Tensor:
        """The grid of rows × columns cells that was partitioned."""
        x = windows.view(-1, self.rows // self.size, self.columns // self.size, self.size, self.size, windows.size(-1))
        x = x.transpose(2, 3).reshape(-1, self.rows, self.columns, x.size(-1))
        x = x.roll((self.shift, self.shift), (1, 2)) if self.shift else x
        return x[:, :rows, :columns]

    def cells(self, device: torch.device | str = "cpu") -> Tensor:
        grid = torch.arange(self.rows * self.columns, device=device).view(1, self.rows, self.columns, 1)
        return self.partition(grid)[..., 0]

    def rule(self, batch: int, device: torch.device) -> "ShiftedWindows | None":
        """The mask of a batch of shifted grids; all cells of a window attend to each other in others."""
        if not self.shift:
            return None
        wrapped = [torch.arange(size, device=device) < self.shift for size in (self.rows, self.columns)]
        regions = (2 * wrapped[0][:, None] + wrapped[1]).view(1, self.rows, self.columns, 1)
        return ShiftedWindows(self.partition(regions)[..., 0], batch)

    def view(self, record: AttentionRecord) -> "WindowRecord":
        """A record of attention in these windows as one of the grid."""
        return WindowRecord(record, self)


@dataclass(frozen=True, eq=False)
class ShiftedWindows(Rule):
    """Cells attend to those of their own region: those that wrapped around, by rows or columns, and the others.

    `regions` (windows, size²) has the region of each cell, 0 … 3; every image of the batch has the same.
    """

    regions: Tensor
    batch: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        mask = self.regions[:, query, None] == self.regions[:, None, key]
        return mask[:, None].repeat(self.batch, 1, 1, 1)


@dataclass(frozen=True, eq=False)
class RelativePositions(Bias):
    """B[Δrow, Δcolumn] of each head, for cells in a window. Equation 4.

    `table` ((2 · size − 1)², heads) is for windows up to `size`, of which a smaller `window` uses the middle.
    """

    table: Tensor
    size: int
    window: int

    @property
    def heads(self) -> int:  # type: ignore[override]
        return self.table.size(1)

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        down = query[:, None] // self.window - key // self.window + self.size - 1
        right = query[:, None] % self.window - key % self.window + self.size - 1
        index = down * (2 * self.size - 1) + right
        return self.table[index.flatten()].T.unflatten(1, index.shape)[None]


class RelativePositionBias(nn.Module):
    """The position bias of one attention layer: a learned table of relative positions."""

    def __init__(self, heads: int, size: int):
        super().__init__()
        self.size = size
        self.table = nn.Parameter(torch.empty((2 * size - 1) ** 2, heads))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, attention: Attention, query: Tensor, memory: Memory) -> Bias:
        return RelativePositions(self.table, self.size, math.isqrt(query.size(-2)))


class WindowRecord(AttentionRecord):
    """Attention in windows as a record over all cells of the grid, padding included; 0 outside of a cell's window."""

    def __init__(self, record: AttentionRecord, windows: Windows):
        self.__dict__.update(vars(record))  # a frozen dataclass
        self.__dict__.update(
            record=record,
            windows=windows,
            length=windows.rows * windows.columns,
            query=self._in_grid(record.query, windows),
            value=None if record.value is None else self._in_grid(record.value, windows),
            context=None if record.context is None else self._in_grid(record.context, windows),
        )

    record: AttentionRecord
    windows: Windows

    @cached_property
    def cells(self) -> Tensor:
        return self.windows.cells(self.query.device)

    def weights(self, queries: slice = slice(None), heads: slice = slice(None), batch: slice = slice(None)) -> Tensor:
        """(batch, heads, queries, cells)."""
        count = self.windows.count
        start, stop, _ = batch.indices(len(self.query))
        inner = self.record.weights(heads=heads, batch=slice(start * count, stop * count))
        inner = inner.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)
        order = self.cells.flatten().argsort()[queries]  # the position in the windows of each cell
        keys = self.cells[order // self.cells.size(1)]
        weights = inner.new_zeros(*inner.shape[:2], len(order), self.length)
        return weights.scatter_(-1, keys.expand(*inner.shape[:2], -1, -1), inner[:, :, order])

    @staticmethod
    def _in_grid(x: Tensor, windows: Windows) -> Tensor:
        """(batch · windows, heads, size², width) → (batch, heads, cells, width)."""
        order = windows.cells(x.device).flatten().argsort()
        return x.unflatten(0, (-1, windows.count)).transpose(1, 2).flatten(2, 3)[:, :, order]
