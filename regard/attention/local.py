"""Local attention: a query looks only near one place of what it attends to. Luong et al. 2015, section 3.2.

A focus says where that is; what it gives is handed to the one core as its rule and bias.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.masks import Bias, Rule

Focused = tuple[Rule | None, Bias | None]


@dataclass(frozen=True, eq=False)
class Near(Rule):
    """Each query sees the keys at most `reach` from its centre (batch, queries); the first query stands at `first`."""

    centre: Tensor
    reach: int
    first: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.distance(query, key).abs() <= self.reach

    def distance(self, query: Tensor, key: Tensor) -> Tensor:
        return key - self.centre[:, None, query - self.first, None]


@dataclass(frozen=True, eq=False)
class Fading(Bias):
    """The logarithm of a Gaussian around the centre: σ = reach / 2."""

    near: Near

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.near.distance(query, key).square() * (-2.0 / self.near.reach**2)


class Everywhere(nn.Module):
    """Global attention: the whole memory is seen."""

    def __init__(self, width: int, reach: int):
        super().__init__()
        self.reach = reach

    def forward(self, x: Tensor, memory: Memory, time: int) -> Focused:
        """Rule and bias for queries x (rows, queries, width), the first of which writes the place `time`."""
        return None, None

    def near(self, centre: Tensor, memory: Memory) -> Near:
        centre = centre.reshape(memory.key.size(0), -1)  # hypotheses of one source look side by side
        return Near(centre, self.reach, memory.end - centre.size(1))

    def lengths(self, memory: Memory, rows: int) -> Tensor:
        """How many real places the memory of each row has, (rows, 1)."""
        sources = memory.key.size(0)
        full = torch.full((sources, 1), memory.length, device=memory.key.device)
        lengths = full if memory.real is None else memory.real.sum(-1, keepdim=True)
        return lengths.repeat_interleave(rows // sources, 0)


class Monotonic(Everywhere):
    """local-m: source and target are said to run alike, so the centre is the place being written, or the last one."""

    def forward(self, x: Tensor, memory: Memory, time: int) -> Focused:
        places = torch.arange(time, time + x.size(1), device=x.device)
        return self.near(torch.minimum(places, self.lengths(memory, x.size(0)) - 1), memory), None


class Predictive(Everywhere):
    """local-p: the centre is predicted, S · sigmoid(v · tanh(W x)), and weights fade around it.

    The Gaussian's logarithm is added to the scores, so weights sum to one; the paper multiplies the weights by it.
    """

    def __init__(self, width: int, reach: int):
        super().__init__(width, reach)
        self.predict = nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh(), nn.Linear(width, 1, bias=False))

    def forward(self, x: Tensor, memory: Memory, time: int) -> Focused:
        near = self.near(self.lengths(memory, x.size(0)) * self.predict(x).squeeze(-1).sigmoid(), memory)
        return near, Fading(near)


FOCUS: dict[str, Callable[[int, int], Everywhere]] = {
    "global": Everywhere,
    "local-m": Monotonic,
    "local-p": Predictive,
}
