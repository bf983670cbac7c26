"""The state between two decoding steps, as a value: nested tuples of tensors whose first axis is the rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from regard.attention.core import Memory


class State(NamedTuple):
    """State with one row per source, and state with one row per hypothesis (those of one source are adjacent)."""

    source: Any
    hypothesis: Any


def reorder(state: Any, rows: Tensor) -> Any:
    """Select rows of a nested state, as a search copies, reorders and drops hypotheses; other values are kept."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, Memory):
        return state.select(rows)
    if isinstance(state, tuple):
        items = [reorder(item, rows) for item in state]
        return type(state)(*items) if hasattr(state, "_fields") else tuple(items)
    return state


def tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a nested state, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for item in state:
            yield from tensors(item)
