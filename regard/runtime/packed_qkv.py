"""Queries, keys and values of the same x in one product.

The three weights become parts of one tensor, and stay the parameters that they were for whoever saves or trains them:
where gradients are wanted, each goes its own way.
Shapes: x (…, inputs), weight (outputs of all three, inputs).
"""

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.runtime.linear import few


def joinable(attention: Attention) -> list[nn.Linear]:
    """The three projections, where they are plain products of one input; else none."""
    parts = [attention.query, attention.key, attention.value]
    if not all(type(part) is nn.Linear for part in parts):
        return []
    linears = cast(list[nn.Linear], parts)
    alike = {(part.in_features, part.bias is None, part.weight.device) for part in linears}
    apart = len({id(part.weight) for part in linears}) == len(linears)
    return linears if len(alike) == 1 and apart else []


def sizes(parts: list[nn.Linear]) -> tuple[int, ...]:
    """How many outputs are queries, keys and values."""
    return tuple(part.out_features for part in parts)


class PackedQKV:
    """The product, with its weights by rows or by columns; not a module, so that its parts are nobody's twice."""

    def __init__(self, parts: list[nn.Linear], by_rows: bool = True):
        self.parts, self.by_rows = parts, by_rows
        self.weight = _joined([part.weight for part in parts], by_rows)
        self.bias = None if parts[0].bias is None else _joined([part.bias for part in parts], by_rows)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.holds:
            return torch.cat([part(x) for part in self.parts], -1)
        return few(x, self.weight, self.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedQKV":
        return PackedQKV(
            deepcopy(self.parts, memo), self.by_rows
        )  # copied parameters are tensors of their own until then

    @property
    def holds(self) -> bool:
        """Whether the parameters still are parts of the one: others may have been put in their place."""
        biases = self.bias is None or _holds(self.bias, [part.bias for part in self.parts])
        return biases and _holds(self.weight, [part.weight for part in self.parts])


def _holds(whole: Tensor, parts: list[Any]) -> bool:
    place, step = whole.data_ptr(), whole.stride(0) * whole.element_size()
    for part in parts:
        if part.data_ptr() != place:
            return False
        place += len(part) * step
    return True


def _joined(parts: list[Any], by_rows: bool) -> Tensor:
    """One tensor whose parts are the parameters' data."""
    whole = torch.cat([part.detach() for part in parts])
    if whole.ndim == 2 and not by_rows:
        whole = whole.t().contiguous().t()
    for part, place in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = place
    return whole
