"""One-dimensional convolutions over a sequence.

Shapes: x (batch, length, width); `past` (batch, reach, width) are the positions before x.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(nn.Module):
    """A dilated convolution, as one linear layer over the concatenated positions of each window."""

    def __init__(self, width: int, outputs: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.kernel = kernel
        self.dilation = dilation
        self.reach = (kernel - 1) * dilation  # from the first position of a window to its last
        self.width = width
        self.linear = nn.Linear(kernel * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Windows centred on each position, zero-padded on both sides."""
        return self._convolve(F.pad(x, (0, 0, self.reach // 2, self.reach - self.reach // 2)))

    def after(self, past: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Causal: windows that end with each position. Also returns the `past` of the next call."""
        x = torch.cat([past, x], 1)
        return self._convolve(x), x[:, x.size(1) - self.reach :]

    def _convolve(self, x: Tensor) -> Tensor:
        length = x.size(1) - self.reach
        shifted = [x[:, start : start + length] for start in range(0, self.reach + 1, self.dilation)]
        return self.linear(torch.cat(shifted, -1))


class ConvState(NamedTuple):
    """The state of a convolutional decoder: the cached inputs of each layer, and the next position."""

    past: tuple[Tensor, ...]
    time: int

    @classmethod
    def empty(cls, layers: Iterable[Any], source: Tensor) -> "ConvState":
        """The state before the first token: zeros for the `convolution` of each layer, in the source's batch size."""
        sizes = [(source.size(0), layer.convolution.reach, layer.convolution.width) for layer in layers]
        return cls(tuple(source.new_zeros(size) for size in sizes), 0)
