"""Batch types: the inputs of networks. A network declares the one it takes as its `input_type`."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from regard.layers.pytree import to_device

Ids = Sequence[int] | np.ndarray


class Batch(Protocol):
    """What every batch has, whatever its modality. Sequences also have `lengths` and `real`."""

    @property
    def batch_size(self) -> int: ...

    def to(self, device: torch.device | str) -> Self: ...


class TokenBatch(NamedTuple):
    """Token sequences, padded on the right."""

    tokens: Tensor  # (batch, length)
    lengths: Tensor  # (batch)
    segments: Tensor | None = None  # (batch, length): the text of a pair that each token is of; None: all of the first

    @property
    def real(self) -> Tensor:
        """False where padded."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @property
    def batch_size(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> "TokenBatch":
        return to_device(self, device)

    @classmethod
    def minimal(cls, device: torch.device | str = "cpu") -> "TokenBatch":
        """One sequence of one token: the smallest input that a network accepts."""
        return cls(torch.zeros(1, 1, dtype=torch.long, device=device), torch.ones(1, dtype=torch.long, device=device))


class ImageBatch(NamedTuple):
    """Images of one size, normalised."""

    pixels: Tensor  # (batch, channels, height, width)

    @property
    def batch_size(self) -> int:
        return len(self.pixels)

    def to(self, device: torch.device | str) -> "ImageBatch":
        return to_device(self, device)


class AudioBatch(NamedTuple):
    """Feature frames of recordings, padded on the right."""

    frames: Tensor  # (batch, length, bins)
    lengths: Tensor  # (batch)

    @property
    def real(self) -> Tensor:
        """False where padded."""
        return torch.arange(self.frames.shape[1], device=self.frames.device) < self.lengths[:, None]

    @property
    def batch_size(self) -> int:
        return len(self.frames)

    def to(self, device: torch.device | str) -> "AudioBatch":
        return to_device(self, device)

    @classmethod
    def minimal(cls, bins: int, length: int = 1, device: torch.device | str = "cpu") -> "AudioBatch":
        """One recording of silence: the smallest input that a network accepts."""
        return cls(torch.zeros(1, length, bins, device=device), torch.full((1,), length, device=device))


def pad(rows: Sequence[Ids], padding: int, first: Sequence[int] = (), last: Sequence[int] = ()) -> TokenBatch:
    """Sequences as one batch, each with the tokens `first` before it and `last` after it."""
    lengths = [len(first) + len(row) + len(last) for row in rows]
    tokens = np.full((len(rows), max(lengths, default=0)), padding, np.int64)
    for padded, row, length in zip(tokens, rows, lengths, strict=True):
        padded[: len(first)] = first
        padded[len(first) : len(first) + len(row)] = row
        padded[length - len(last) : length] = last
    return TokenBatch(torch.from_numpy(tokens), torch.tensor(lengths, dtype=torch.int64))
