"""The fused kernel: contexts without all the weights, ours for whole texts, else torch's.

Shapes: query (batch, heads, queries, width), key and value (batch, key heads, length, width).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels import bindings as kernels


def attended(query: Tensor, key: Tensor, value: Tensor, scale: float, rows: Tensor | None, causal: bool) -> Tensor:
    """softmax(scale · query · keyᵀ) · value; `rows` is a mask or a bias, `causal` that of the kernel's own."""
    if rows is None and kernels.looks(query, key, value, causal):
        return _Attended.apply(query, key, value, scale, causal)  # pyright: ignore[reportReturnType]
    grouped = key.size(1) != query.size(1)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=rows, is_causal=causal, scale=scale, enable_gqa=grouped
    )


class _Attended(torch.autograd.Function):
    """Ours; the way back can be gone once."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
        context, sums = kernels.look(query, key, value, scale, causal)
        ctx.save_for_backward(query, key, value, context, sums)
        ctx.how = scale, causal
        return context.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, context, sums = ctx.saved_tensors
        scale, causal = ctx.how
        found = kernels.look_back((query, key, value), scale, causal, context, sums, gradient.transpose(1, 2))
        return *[each.transpose(1, 2) for each in found], None, None
