"""Functions over nested tuples of tensors, such as batches. The first axis of each tensor is the samples."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

N = TypeVar("N")


def tree_map(nest: N, function: Callable[[Tensor], Tensor]) -> N:
    """Apply a function to each tensor; everything else is kept."""
    return _map(nest, function)


def _map(nest: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, tuple):
        items = [_map(item, function) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else tuple(items)
    return nest


def to_device(nest: N, device: torch.device | str) -> N:
    """Move all tensors to a device."""
    return tree_map(nest, lambda tensor: tensor.to(device, non_blocking=True))


def select_rows(nest: N, rows: slice) -> N:
    """Select samples. A batch that is more than rows implements it as its method `rows`."""
    method: Callable[[slice], N] | None = getattr(nest, "rows", None)
    return method(rows) if method else tree_map(nest, lambda tensor: tensor[rows])


def select_ragged(mask: Tensor, values: Tensor, rows: slice) -> Tensor:
    """Select rows of `values`, which has one element for each True of `mask` (batch, length), in order."""
    return torch.cat([*values.split(mask.sum(1).tolist())[rows], values[:0]])
