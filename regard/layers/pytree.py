"""Batches are nests of tuples with tensors in them, whose first axis is the samples; what is done to all of them."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

N = TypeVar("N")


def tree_map(nest: N, change: Callable[[Tensor], Tensor]) -> N:
    """The same nest with other tensors; what is none stays."""
    return _changed(nest, change)


def _changed(nest: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(nest, Tensor):
        return change(nest)
    if isinstance(nest, tuple):
        items = [_changed(item, change) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else tuple(items)
    return nest


def to_device(nest: N, device: torch.device | str) -> N:
    """On that device."""
    return tree_map(nest, lambda tensor: tensor.to(device, non_blocking=True))


def select_rows(nest: N, some: slice) -> N:
    """Some of its samples. A batch that is more than rows says itself how."""
    own: Callable[[slice], N] | None = getattr(nest, "rows", None)
    return own(some) if own else tree_map(nest, lambda tensor: tensor[some])


def select_ragged(places: Tensor, values: Tensor, some: slice) -> Tensor:
    """Of values that stand row by row at the True `places`, those of some rows."""
    return torch.cat([*values.split(places.sum(1).tolist())[some], values[:0]])
