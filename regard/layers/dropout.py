"""Dropout at the price of a quarter of its random numbers.

Drawing one number for each element takes a tenth of a training step on a CPU. Here one draw of 64 bits decides four.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

STEPS = 1 << 16  # the rate is rounded to the nearest 1/65,536

_own: ContextVar[torch.Generator | None] = ContextVar("own", default=None)  # else torch's


@contextmanager
def drawn_by(generator: torch.Generator) -> Iterator[None]:
    """Here, in this thread, dropout draws by a generator of its own, which none of the other threads draws by."""
    before = _own.set(generator)
    try:
        yield
    finally:
        _own.reset(before)


class Dropout(nn.Module):
    """Zeros elements at the given rate while training, and scales the others up. Srivastava et al. 2014."""

    def __init__(self, rate: float):
        super().__init__()
        self.steps = round(rate * STEPS)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.steps:
            return x
        numbers = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        numbers.random_(-(1 << 63), None, generator=_own.get())
        parts = numbers.view(torch.int16)[: x.numel()].view(x.shape)  # each from −32,768 to 32,767, evenly
        keep = (parts >= self.steps - STEPS // 2).to(x.dtype)
        return x * keep.mul_(STEPS / (STEPS - self.steps))

    def extra_repr(self) -> str:
        return f"rate={self.steps / STEPS:.4g}"


def drop(network: nn.Module, rate: float) -> None:
    """Another rate in every place of a network that drops elements."""
    for module in network.modules():
        if isinstance(module, Dropout):
            module.steps = round(rate * STEPS)
        elif isinstance(module, nn.RNNBase) and module.num_layers > 1:  # torch's own, between its layers
            module.dropout = rate
