"""Queries, keys and values of the same x by one matrix product.

The three weights become views of one tensor, and stay the parameters that they were for saving and training: with
gradients, each is multiplied by itself.
Shapes: x (…, inputs), weight (outputs of all three, inputs).
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.kernels import ops


def packable(attention: Attention) -> list[nn.Linear]:
    """The three projections, where they are plain linear layers of one input; else none."""
    layers = [attention.query, attention.key, attention.value]
    if not all(type(layer) is nn.Linear for layer in layers):
        return []
    linears = cast(list[nn.Linear], layers)
    kinds = {(layer.in_features, layer.bias is None, layer.weight.device) for layer in linears}
    distinct = len({id(layer.weight) for layer in linears}) == len(linears)
    return linears if len(kinds) == 1 and distinct else []


class PackedQKV:
    """The product, with its weights by rows or by columns; not a module, so that no parameter is listed twice."""

    def __init__(self, layers: list[nn.Linear], row_major: bool = True):
        self.layers = layers
        self.row_major = row_major
        self.weight = _concatenate([layer.weight for layer in layers], row_major)
        self.bias = None if layers[0].bias is None else _concatenate([layer.bias for layer in layers], row_major)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.is_current:
            return torch.cat([layer(x) for layer in self.layers], -1)
        return ops.linear(x, self.weight, self.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedQKV":
        return PackedQKV(deepcopy(self.layers, memo), self.row_major)  # copied parameters are separate until then

    @property
    def is_current(self) -> bool:
        """Whether the parameters still are views of the one tensor: they may have been replaced."""
        biases = self.bias is None or _are_views(self.bias, [layer.bias for layer in self.layers])
        return biases and _are_views(self.weight, [layer.weight for layer in self.layers])


def _are_views(concatenated: Tensor, parameters: Sequence[Tensor]) -> bool:
    address = concatenated.data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != address:
            return False
        address += len(parameter) * concatenated.stride(0) * concatenated.element_size()
    return True


def _concatenate(parameters: Sequence[Tensor], row_major: bool) -> Tensor:
    """One tensor, of which the parameters' data become views."""
    concatenated = torch.cat([parameter.detach() for parameter in parameters])
    if concatenated.ndim == 2 and not row_major:
        concatenated = concatenated.t().contiguous().t()
    views = concatenated.split([len(parameter) for parameter in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view
    return concatenated
