"""Position encodings.

Sinusoid and Learned are added to embeddings of shape (batch, length, width); Rotary rotates queries and keys of shape
(batch, heads, length, width). `start` is the first position. `gap` (batch,) is the padding before each row, if any;
positions then count from the first real token.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


def sinusoid(length: int, width: int, halves: bool = False) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(…): Vaswani et al. 2017, section 3.5.

    With `halves` all sines precede all cosines, as in Marian.
    """
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width)
    )
    table = torch.empty(length, width, dtype=torch.float64)
    if halves:
        table[:, : angles.size(1)] = angles.sin()
        table[:, angles.size(1) :] = angles[:, : width // 2].cos()
    else:
        table[:, 0::2] = angles.sin()
        table[:, 1::2] = angles[:, : width // 2].cos()
    return table.float()


class Sinusoid(nn.Module):
    """Fixed sinusoids, of any length."""

    table: Tensor

    def __init__(self, width: int, halves: bool = False):
        super().__init__()
        self.width = width
        self.halves = halves
        self.register_buffer("table", sinusoid(256, width, halves), persistent=False)

    def forward(self, start: int, length: int, gap: Tensor | None = None) -> Tensor:
        table = self.table  # another thread may replace it meanwhile
        if start + length > table.size(0):
            with torch.inference_mode(False):  # it may be used in training later
                table = self.table = sinusoid(2 * (start + length), self.width, self.halves).to(table)
        return table[_positions(start, length, gap)]


class Learned(nn.Module):
    """A learned vector for each of `max_positions` positions."""

    def __init__(self, width: int, max_positions: int):
        super().__init__()
        self.table = nn.Embedding(max_positions, width)

    def forward(self, start: int, length: int, gap: Tensor | None = None) -> Tensor:
        return self.table.weight[_positions(start, length, gap)]


def _positions(start: int, length: int, gap: Tensor | None) -> slice | Tensor:
    """The positions from `start` on: the same for all rows, or (batch, length) with a gap."""
    if gap is None:
        return slice(start, start + length)
    return (torch.arange(start, start + length, device=gap.device) - gap[:, None]).clamp(min=0)


class Rotation(NamedTuple):
    """The cosines and sines of the rotation angles, (length, width) or (batch, 1, length, width)."""

    cosine: Tensor
    sine: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-second, first], -1) * self.sine


class Rotary(nn.Module):
    """Rotary position embedding (RoPE): each pair of features is rotated by an angle proportional to the position.

    Scores then depend on relative positions only. Su et al. 2021, equation 34; pairs are (i, i + width / 2).
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, width: int, base: float = 10000.0, scaling: Callable[[Tensor], Tensor] = lambda freqs: freqs):
        """`scaling` lowers the frequencies for contexts longer than the model was trained on."""
        super().__init__()
        exponents = torch.arange(0, width, 2, dtype=torch.float32) / width  # always float32
        self.frequencies = scaling(1.0 / base**exponents)
        cosine, sine = self._table(256)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, start: int, length: int, gap: Tensor | None = None) -> Rotation:
        cosine = self.cosine  # another thread may replace them meanwhile
        sine = self.sine
        if start + length > min(len(cosine), len(sine)):
            with torch.inference_mode(False):  # they may be used in training later
                cosine, sine = (table.to(cosine) for table in self._table(2 * (start + length)))
            self.cosine = cosine
            self.sine = sine
        positions = _positions(start, length, gap)
        if gap is None:
            return Rotation(cosine[positions], sine[positions])
        return Rotation(cosine[positions][:, None], sine[positions][:, None])

    def _table(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(length, dtype=torch.float32, device=self.frequencies.device)[:, None] * self.frequencies
        both = torch.cat([angles, angles], -1)
        return both.cos(), both.sin()
