"""Masks and biases: rules that define which keys a query may attend to, joined with `&`.

Rules take positions in the memory, counted from its first key ever: queries (queries,), keys (length,).
Masks are boolean, True = may attend, and broadcast to (batch, heads, queries, length).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


class Rule(ABC):
    """A mask, materialised for a band of queries at a time, never n × n."""

    by_query = True  # False where the mask is the same for every query

    @abstractmethod
    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        """The mask of these queries and keys, by their positions."""

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        """The range [start, end) of keys that queries first … last may attend to; None is the last key."""
        return 0, None

    def __and__(self, other: "Rule | None") -> "Rule":
        return self if other is None else Both(self, other)


@dataclass(frozen=True)
class Both(Rule):
    one: Rule
    other: Rule

    @property
    def by_query(self) -> bool:  # type: ignore[override]
        return self.one.by_query or self.other.by_query

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.one.rows(query, key) & self.other.rows(query, key)

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        start, end = self.one.span(first, last)
        other_start, other_end = self.other.span(first, last)
        bounds = [bound for bound in (end, other_end) if bound is not None]
        return max(start, other_start), min(bounds, default=None)


class Causal(Rule):
    """Each query attends to itself and to earlier positions."""

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query[:, None]

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        return 0, last + 1


causal = Causal()


@dataclass(frozen=True)
class Window(Rule):
    """Sliding window: each query attends to the last `size` positions up to its own. Join with `causal`."""

    size: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return key > query[:, None] - self.size

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        return max(0, first - self.size + 1), None


@dataclass(frozen=True)
class Prefix(Rule):
    """Prefix LM: all attend to the first `length` positions; causal beyond them."""

    length: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query[:, None]) | (key < self.length)

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        return 0, max(last + 1, self.length)


@dataclass(frozen=True, eq=False)
class Padding(Rule):
    """No query attends to padding. `real` (batch, length) is about the keys of the memory, which begin at `start`."""

    real: Tensor
    start: int = 0
    by_query = False

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.real[:, None, None, key - self.start]


class Bias(ABC):
    """A term added to the scores, materialised like a mask for a band of queries at a time."""

    heads = 1  # the heads that it differs for: the more, the fewer queries in a band

    @abstractmethod
    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        """The term for these queries and keys, by their positions."""

    def rows_of(self, texts: slice, heads: slice, query: Tensor, key: Tensor) -> Tensor:
        """The rows of these texts and heads."""
        bias = self.rows(query, key)
        bias = bias[texts] if bias.size(0) > 1 else bias
        return bias[:, heads] if bias.size(1) > 1 else bias
