"""What a generator knows between two steps, as a value: nested tuples of tensors whose first axis is the rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from regard.attention.core import Memory


class State(NamedTuple):
    """A part with one row per source, and a part with one row per hypothesis (those of one source adjacent)."""

    source: Any
    hypothesis: Any


def reorder(state: Any, rows: Tensor) -> Any:
    """The given rows of a nested state: how a search copies, reorders and drops; what is no tensor is shared by all."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, Memory):
        return state.select(rows)
    if isinstance(state, tuple):
        parts = [reorder(part, rows) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a nested state, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from tensors(part)
