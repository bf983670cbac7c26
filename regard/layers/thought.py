"""A feed-forward network as one step of the gradient's way: products and what bends between them by our kernels.

torch's products of a small model spend a fifth of their time on copies of what they multiply, and most of the rest of
a step is calls. Here weights alone are laid out anew, and there is one call there and one back.

Shapes: x (…, width), hidden (…, hidden).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.kernels import bindings as kernels
from regard.layers.activations import NUMBERS


def possible(x: Tensor, widen: nn.Module, bend: nn.Module, narrow: nn.Module) -> bool:
    """Whether these are plain products of many rows, which our kernels are the faster for, and nobody listens."""
    if type(widen) is not nn.Linear or type(narrow) is not nn.Linear or type(bend) not in NUMBERS:
        return False
    fit = x.size(-1) == widen.in_features and widen.out_features == narrow.in_features
    heard = any(
        each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in (widen, bend, narrow)
    )
    return fit and not heard and kernels.many(x, widen.weight, widen.bias, narrow.weight, narrow.bias)


def thought(x: Tensor, widen: nn.Linear, bend: nn.Module, narrow: nn.Linear) -> Tensor:
    """narrow(bend(widen(x)))."""
    number, parameters = NUMBERS[type(bend)], (widen.weight, widen.bias, narrow.weight, narrow.bias)
    if torch.is_grad_enabled():
        return _Thought.apply(x, *parameters, number)  # pyright: ignore[reportReturnType]
    hidden = kernels.product_of_many(x, widen.weight, widen.bias, bend=number)
    return kernels.product_of_many(hidden, narrow.weight, narrow.bias)


class _Thought(torch.autograd.Function):
    """The way back can be gone once. What was before bending is kept, but for ReLU, which tells it afterwards too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, widen: Tensor, widen_bias: Tensor | None, narrow: Tensor, bias: Tensor | None, number: int
    ) -> Tensor:
        if number == NUMBERS[nn.ReLU]:
            before = hidden = kernels.product_of_many(x, widen, widen_bias, bend=number)
        else:
            before = kernels.product_of_many(x, widen, widen_bias)
            hidden = kernels.bent(before, number)
        _, of_widen, _, of_narrow, _, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_widen else None, widen, before, hidden if of_narrow else None, narrow)
        ctx.number = number
        return kernels.product_of_many(hidden, narrow, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, widen, before, hidden, narrow = ctx.saved_tensors
        of_x, of_widen, of_widen_bias, of_narrow, of_bias, _ = ctx.needs_input_grad
        inner = kernels.bent(before, ctx.number, kernels.product_of_many(gradient, narrow, turned=True))
        rows, inner_rows = gradient.reshape(-1, len(narrow)), inner.view(-1, len(widen))
        return (
            kernels.product_of_many(inner, widen, turned=True) if of_x else None,
            inner_rows.t() @ x.reshape(-1, widen.size(1)) if of_widen else None,
            inner_rows.sum(0) if of_widen_bias else None,
            rows.t() @ hidden.view(-1, len(widen)) if of_narrow else None,
            rows.sum(0) if of_bias else None,
            None,
        )
