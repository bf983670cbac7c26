"""Dropout with a quarter of the random numbers.

Drawing one number for each element takes 10 % of a training step on a CPU. Here one draw of 64 bits decides four.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # the rate is rounded to the nearest 1/65,536

_generator: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)  # None: torch's own


@contextmanager
def dropout_generator(generator: torch.Generator) -> Iterator[None]:
    """Dropout in this thread draws from a generator of its own, so that other threads do not change its masks."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


class Dropout(nn.Module):
    """Zeroes elements at the given rate in training, and scales the others up. Srivastava et al. 2014."""

    def __init__(self, rate: float):
        super().__init__()
        self.keep_threshold = round(rate * LEVELS)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.keep_threshold:
            return x
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        bits.random_(-(1 << 63), None, generator=_generator.get())
        levels = bits.view(torch.int16)[: x.numel()].view(x.shape)  # uniform from −32,768 to 32,767
        keep = (levels >= self.keep_threshold - LEVELS // 2).to(x.dtype)
        return x * keep.mul_(LEVELS / (LEVELS - self.keep_threshold))

    def extra_repr(self) -> str:
        return f"rate={self.keep_threshold / LEVELS:.4g}"


class VariationalDropout(Dropout):
    """Dropout with one mask for all positions of a sequence. Gal & Ghahramani 2016."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.keep_threshold:
            return x
        return x * super().forward(torch.ones_like(x[:, :1]))


class DropPath(nn.Module):
    """Stochastic depth: drops the sublayer of a random part of the samples in training. Huang et al. 2016."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        uniform = torch.empty(len(x), *(1,) * (x.dim() - 1), device=x.device).uniform_(generator=_generator.get())
        return x * (uniform >= self.rate).to(x.dtype).div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.4g}"


def set_dropout(network: nn.Module, rate: float) -> None:
    """Change the dropout rate of a network."""
    for module in network.modules():
        if isinstance(module, Dropout):
            module.keep_threshold = round(rate * LEVELS)
        elif isinstance(module, nn.RNNBase) and module.num_layers > 1:  # torch's own, between its layers
            module.dropout = rate
