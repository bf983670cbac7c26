"""Recording: while a recorder is active, every use of attention is kept, by the name of its site.

The fused kernel still runs: a record keeps queries and keys, and weights are recomputed later, for the requested
queries. A site is a name in the computation (`decoder.blocks.2.cross`), built by nested `scope`s.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention.masks import Bias, Rule
from regard.attention.scores import Score, weigh


@dataclass(frozen=True)
class AttentionRecord:
    """One use of attention over `length` positions of a memory, from `start` on: enough to recompute its weights."""

    score: Score
    query: Tensor
    key: Tensor | None  # absent where weights are stored: a growing past would be kept once for each step
    rule: Rule | None
    bias: Bias | None
    start: int
    length: int
    stored_weights: Tensor | None = None  # where the score is not a product
    value: Tensor | None = None  # with the context, on request: the proof that these weights were used
    context: Tensor | None = None

    @property
    def queries(self) -> int:
        return self.query.size(-2)

    def weights(self, queries: slice = slice(None), heads: slice = slice(None), batch: slice = slice(None)) -> Tensor:
        """(batch, heads, queries, length), for a slice of each; no others are computed."""
        if self.key is None:
            assert self.stored_weights is not None
            return self.stored_weights[batch, heads, queries]
        keys = torch.arange(self.start, self.start + self.length, device=self.key.device)
        positions = (keys[-1] + 1 - self.queries + torch.arange(self.queries, device=self.key.device))[queries]
        group_size = self.query.size(1) // self.key.size(1)  # query heads that share one key head
        key = self.key[batch] if group_size == 1 else self.key[batch].repeat_interleave(group_size, 1)
        scores = self.score(self.query[batch, heads, queries], key[:, heads])
        if self.bias is not None:
            scores = scores + self.bias.rows_of(batch, heads, positions, keys).to(scores.dtype)
        mask = None if self.rule is None else self.rule.rows(positions, keys)
        if mask is not None and mask.dim() == 4 and mask.size(0) > 1:  # one mask for each sequence of the batch
            mask = mask[batch]
        return weigh(scores, mask)


View = Callable[[AttentionRecord], AttentionRecord]  # the same attention over other positions


@dataclass
class Recorder:
    """Collects the attention records of one pass, by site, in order."""

    prove: bool = False
    records: dict[str, list[AttentionRecord]] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    view: View | None = None

    def add(self, record: AttentionRecord) -> None:
        record = record if self.view is None else self.view(record)
        self.records.setdefault(".".join(self.path), []).append(record)


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def recorder() -> Recorder | None:
    """The active recorder of this computation, if any."""
    return _recorder.get()


@contextmanager
def record(prove: bool = False) -> Iterator[Recorder]:
    """Record every use of attention while the model runs. With `prove`, keep values and contexts too."""
    active = Recorder(prove)
    token = _recorder.set(active)
    try:
        yield active
    finally:
        _recorder.reset(token)


class scope:
    """`with scope("encoder"): …` names a part of the computation; costs nothing while nothing is recorded.

    Records inside are kept as their `view`, such as windows as the image that they are of.
    """

    def __init__(self, name: str, view: View | None = None):
        self.name = name
        self.view = view

    def __enter__(self) -> None:
        self.active = _recorder.get()
        if self.active:
            self.active.path.append(self.name)
            self.active.view = self.view

    def __exit__(self, *_: object) -> None:
        if self.active:
            self.active.path.pop()
            self.active.view = None
