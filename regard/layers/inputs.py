"""Batch types: what models take as input."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.layers.pytree import to_device

Ids = Sequence[int] | np.ndarray


class TokenBatch(NamedTuple):
    """Token rows padded on the right."""

    tokens: Tensor  # (batch, length)
    lengths: Tensor  # (batch)
    segments: Tensor | None = None  # (batch, length): which of a row's texts each token is of; all of the first if None

    @property
    def real(self) -> Tensor:
        """True where a token stands, False on padding."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    def to(self, device: torch.device | str) -> "TokenBatch":
        return to_device(self, device)

    @classmethod
    def minimal(cls, device: torch.device | str = "cpu") -> "TokenBatch":
        """One sequence of one token: the smallest input that a network accepts."""
        return cls(torch.zeros(1, 1, dtype=torch.long, device=device), torch.ones(1, dtype=torch.long, device=device))


def pad(rows: Sequence[Ids], padding: int, first: Sequence[int] = (), last: Sequence[int] = ()) -> TokenBatch:
    """Rows as one tensor, each with `first` before it and `last` behind it."""
    lengths = [len(first) + len(row) + len(last) for row in rows]
    tokens = np.full((len(rows), max(lengths, default=0)), padding, np.int64)
    for place, row, length in zip(tokens, rows, lengths, strict=True):
        place[: len(first)] = first
        place[len(first) : len(first) + len(row)] = row
        place[length - len(last) : length] = last
    return TokenBatch(torch.from_numpy(tokens), torch.tensor(lengths, dtype=torch.int64))
