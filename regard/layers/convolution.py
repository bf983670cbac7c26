"""Convolutions over a sequence: each place sees a window of places.

Shapes: x (batch, length, width); `past` (batch, reach, width) is what came before x.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(nn.Module):
    """A window of `kernel` places, `dilation` apart, side by side through one product."""

    def __init__(self, width: int, outputs: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.reach = (kernel - 1) * dilation  # from the first place of a window to its last
        self.width, self.product = width, nn.Linear(kernel * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Windows around each place, zeros beyond both ends."""
        return self._over(F.pad(x, (0, 0, self.reach // 2, self.reach - self.reach // 2)))

    def after(self, past: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Windows that end with each place, so that none sees what follows; and the past of what comes next."""
        x = torch.cat([past, x], 1)
        return self._over(x), x[:, x.size(1) - self.reach :]

    def _over(self, x: Tensor) -> Tensor:
        length = x.size(1) - self.reach
        shifted = [x[:, start : start + length] for start in range(0, self.reach + 1, self.dilation)]
        return self.product(torch.cat(shifted, -1))


class Windows(NamedTuple):
    """A decoder between two steps: what each layer's next window will see of the past, and the place to be written."""

    past: tuple[Tensor, ...]
    time: int

    @classmethod
    def of_nothing(cls, layers: Iterable[Any], source: Tensor) -> "Windows":
        """Before the first token: zeros for the `windows` of each layer, a row for each of the source's."""
        sizes = [(source.size(0), layer.windows.reach, layer.windows.width) for layer in layers]
        return cls(tuple(source.new_zeros(size) for size in sizes), 0)
