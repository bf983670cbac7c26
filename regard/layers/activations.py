"""What bends: activations by name, of many numbers by our own kernels where they are built."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.kernels import bindings as kernels

SMALL = 1 << 13  # numbers: of fewer, torch's are the faster to call


class _Ours(nn.Module):
    """What torch bends, by our kernels."""

    def forward(self, x: Tensor) -> Tensor:
        if not kernels.built() or x.numel() < SMALL or not kernels.exact(x):
            return super().forward(x)
        return _Bent.apply(x, NUMBERS[type(self)])  # pyright: ignore[reportReturnType]


class Gelu(_Ours, nn.GELU):
    """x · Φ(x). Hendrycks & Gimpel 2016."""


class GeluTanh(_Ours, nn.GELU):
    """GELU as GPT-2 computes it (section 2): x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""

    def __init__(self) -> None:
        super().__init__("tanh")


class Swish(_Ours, nn.SiLU):
    """x · sigmoid(x). Ramachandran et al. 2017."""


class _Bent(torch.autograd.Function):
    """An activation by its number; the way back can be gone once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.number = number
        return kernels.bent(x, number)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return kernels.bent(x, ctx.number, gradient), None


NUMBERS: dict[type, int] = {nn.ReLU: 1, Gelu: 2, GeluTanh: 3, Swish: 4, nn.Tanh: 5}  # as numbers.h has them
ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": Gelu(),
    "gelu_tanh": GeluTanh(),
    "swish": Swish(),
    "tanh": nn.Tanh(),
}
