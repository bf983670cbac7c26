"""Masks and biases: rules that say which keys a query may look at, joined with `&`.

A rule speaks of places in the memory, counted from its first key ever: queries (queries,), keys (length,).
As booleans, True = may look; they broadcast to (batch, heads, queries, length).
"""

from dataclasses import dataclass

from torch import Tensor


class Rule:
    """Who may see what. Booleans are made for a band of queries at a time, never for all of n × n."""

    by_query = True  # False where the answer is the same for every query

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        """The keys that queries first … last can see at all lie in [from, to); None is the end."""
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
        (start, end), (other_start, other_end) = self.one.span(first, last), self.other.span(first, last)
        ends = [end for end in (end, other_end) if end is not None]
        return max(start, other_start), min(ends, default=None)


class Causal(Rule):
    """Each query sees itself and what came before it."""

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query[:, None]

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        return 0, last + 1


causal = Causal()


@dataclass(frozen=True)
class Window(Rule):
    """Each query sees the `size` places that end with its own, and whatever follows it; join with `causal`."""

    size: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return key > query[:, None] - self.size

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        return max(0, first - self.size + 1), None


@dataclass(frozen=True)
class Prefix(Rule):
    """All see the first `length` places; beyond these each query sees what came before it."""

    length: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query[:, None]) | (key < self.length)

    def span(self, first: int, last: int) -> tuple[int, int | None]:
        return 0, max(last + 1, self.length)


@dataclass(frozen=True, eq=False)
class Padding(Rule):
    """Only real places are seen. `real` (batch, length) speaks of the memory's present keys, which begin at `start`."""

    real: Tensor
    start: int = 0
    by_query = False

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.real[:, None, None, key - self.start]


class Bias:
    """A term added to the scores, made like a mask for a band of queries at a time."""

    heads = 1  # for which it makes terms: the more, the shorter a band

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def rows_of(self, texts: slice, heads: slice, query: Tensor, key: Tensor) -> Tensor:
        """The rows of some texts and heads alone."""
        found = self.rows(query, key)
        found = found[texts] if found.size(0) > 1 else found
        return found[:, heads] if found.size(1) > 1 else found
