"""Positions: what tells one place from another. Added to embeddings of shape (batch, length, width)."""

import math

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

    def forward(self, start: int, length: int) -> Tensor:
        if start + length > self.table.size(0):
            self.table = sinusoid(2 * (start + length), self.width, self.halves).to(self.table)
        return self.table[start : start + length]


class Learned(nn.Module):
    """A vector for each of `limit` places."""

    def __init__(self, width: int, limit: int):
        super().__init__()
        self.table = nn.Embedding(limit, width)

    def forward(self, start: int, length: int) -> Tensor:
        return self.table.weight[start : start + length]
