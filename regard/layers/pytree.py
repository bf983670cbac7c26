"""Nested tuples of tensors whose first axis is the samples: batches, and the state between two decoding steps."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.attention.core import Memory

N = TypeVar("N")


def tree_map(nest: N, function: Callable[..., Any], leaves: type | tuple[type, ...] = Tensor) -> N:
    """Apply a function to each tensor, or to values of the types `leaves`; everything else is kept."""
    if isinstance(nest, leaves):
        return function(nest)
    if isinstance(nest, tuple):
        items = [tree_map(item, function, leaves) for item in nest]
        return type(nest)(*items) if hasattr(nest, "_fields") else type(nest)(items)
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


class State(NamedTuple):
    """State with one row per source, and state with one row per hypothesis (those of one source are adjacent)."""

    source: Any
    hypothesis: Any


def reorder(state: N, rows: Tensor) -> N:
    """Select rows of a nested state, as a search copies, reorders and drops hypotheses; other values are kept."""

    def select(leaf: Tensor | Memory) -> Tensor | Memory:
        return leaf.select(rows) if isinstance(leaf, Memory) else leaf.index_select(0, rows)

    return tree_map(state, select, (Tensor, Memory))


def tensors(state: object) -> Iterator[Tensor]:
    """All tensors of a nested state, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for item in state:
            yield from tensors(item)
