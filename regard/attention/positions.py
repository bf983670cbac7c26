"""Positions: what tells one place from another.

Sinusoid and Learned are added to embeddings of shape (batch, length, width); Rotary turns queries and keys of shape
(batch, heads, length, width). `start` is the first place. Where rows have padding before them, `gap` (batch,) says how
much, and places count from the first real token.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


def sinusoid(length: int, width: int, halves: bool = False) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(…): Vaswani et al. 2017, section 3.5.

    With `halves` all sines stand before all cosines, as Marian lays them out.
    """
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width)
    )
    table = torch.empty(length, width, dtype=torch.float64)
    if halves:
        table[:, : angles.size(1)], table[:, angles.size(1) :] = angles.sin(), angles[:, : width // 2].cos()
    else:
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles[:, : width // 2].cos()
    return table.float()


class Sinusoid(nn.Module):
    """Fixed waves; any length."""

    table: Tensor

    def __init__(self, width: int, halves: bool = False):
        super().__init__()
        self.width, self.halves = width, halves
        self.register_buffer("table", sinusoid(256, width, halves), persistent=False)

    def forward(self, start: int, length: int, gap: Tensor | None = None) -> Tensor:
        table = self.table  # another thread may put a longer one there meanwhile, or a shorter
        if start + length > table.size(0):
            with torch.inference_mode(False):  # it may serve training later
                table = self.table = sinusoid(2 * (start + length), self.width, self.halves).to(table)
        return table[_places(start, length, gap)]


class Learned(nn.Module):
    """A vector for each of `max_positions` places."""

    def __init__(self, width: int, max_positions: int):
        super().__init__()
        self.table = nn.Embedding(max_positions, width)

    def forward(self, start: int, length: int, gap: Tensor | None = None) -> Tensor:
        return self.table.weight[_places(start, length, gap)]


def _places(start: int, length: int, gap: Tensor | None) -> slice | Tensor:
    """The places from `start` on: the same for all rows, or (batch, length) where padding precedes some."""
    if gap is None:
        return slice(start, start + length)
    return (torch.arange(start, start + length, device=gap.device) - gap[:, None]).clamp(min=0)


class Rotation(NamedTuple):
    """By which angles queries and keys are turned: cosines and sines, (length, width) or (batch, 1, length, width)."""

    cosine: Tensor
    sine: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-other, one], -1) * self.sine


class Rotary(nn.Module):
    """Each pair of a head's numbers turns with the place, at its own speed: the score of a query and a key then tells
    how far apart they are, whatever their places. Su et al. 2021, equation 34; pairs are (i, i + width / 2)."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, width: int, base: float = 10000.0, stretch: Callable[[Tensor], Tensor] = lambda speeds: speeds):
        """`stretch` slows the speeds down for contexts longer than those first trained on."""
        super().__init__()
        self.speeds = stretch(1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))  # always float32
        cosine, sine = self._table(256)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, start: int, length: int, gap: Tensor | None = None) -> Rotation:
        cosine, sine = self.cosine, self.sine  # as above
        if start + length > min(len(cosine), len(sine)):
            with torch.inference_mode(False):  # they may serve training later
                cosine, sine = (part.to(cosine) for part in self._table(2 * (start + length)))
            self.cosine, self.sine = cosine, sine
        places = _places(start, length, gap)
        cosine, sine = cosine[places], sine[places]
        return Rotation(cosine, sine) if gap is None else Rotation(cosine[:, None], sine[:, None])

    def _table(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(length, dtype=torch.float32, device=self.speeds.device)[:, None] * self.speeds
        both = torch.cat([angles, angles], -1)
        return both.cos(), both.sin()
