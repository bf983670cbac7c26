"""A feed-forward network as one step of the gradient's way: products and what bends between them by our kernels.

torch's products of a small model spend a fifth of their time on copies of what they multiply, and most of the rest of
a step is calls. Here weights alone are laid out anew, and there is one call there and one back.

Shapes: x (…, width), hidden (…, hidden).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard import kernels
from regard.layers.activations import NUMBERS


def possible(x: Tensor, widen: nn.Module, narrow: nn.Module) -> bool:
    """Whether these are plain products of many rows, which our kernels are the faster for."""
    if type(widen) is not nn.Linear or type(narrow) is not nn.Linear:
        return False
    return kernels.many(x, widen.weight, widen.bias, narrow.weight, narrow.bias)


def thought(x: Tensor, widen: nn.Linear, bend: nn.Module, narrow: nn.Linear) -> Tensor:
    """narrow(bend(widen(x)))."""
    number = NUMBERS[type(bend)]
    return _Thought.apply(x, widen.weight, widen.bias, narrow.weight, narrow.bias, number)  # pyright: ignore[reportReturnType]


class _Thought(torch.autograd.Function):
    """The way back can be gone once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, widen: Tensor, widen_bias: Tensor | None, narrow: Tensor, bias: Tensor | None, number: int
    ) -> Tensor:
        before = kernels.product_of_many(x, widen, widen_bias)
        hidden = kernels.bent(before, number)
        ctx.save_for_backward(x, widen, before, hidden, narrow)
        ctx.number = number
        return kernels.product_of_many(hidden, narrow, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, widen, before, hidden, narrow = ctx.saved_tensors
        of_x, of_widen, of_widen_bias, of_narrow, of_bias, _ = ctx.needs_input_grad
        inner = kernels.product_of_many(gradient, narrow, turned=True)
        inner = kernels.bent(before, ctx.number, inner)
        rows, inner_rows = gradient.reshape(-1, len(narrow)), inner.view(-1, len(widen))
        return (
            kernels.product_of_many(inner, widen, turned=True) if of_x else None,
            inner_rows.t() @ x.reshape(-1, widen.size(1)) if of_widen else None,
            inner_rows.sum(0) if of_widen_bias else None,
            rows.t() @ hidden.view(-1, len(widen)) if of_narrow else None,
            rows.sum(0) if of_bias else None,
            None,
        )
