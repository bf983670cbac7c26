"""Local attention: a query attends to a window around one source position. Luong et al. 2015, section 3.2.

A focus computes the centre of the window, and returns a rule and a bias for the attention.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.masks import Bias, Rule

Focused = tuple[Rule | None, Bias | None]


@dataclass(frozen=True, eq=False)
class LocalWindow(Rule):
    """Each query, from position `first` on, attends to keys at most `reach` from its centre (batch, queries)."""

    centre: Tensor
    reach: int
    first: int

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.distance(query, key).abs() <= self.reach

    def distance(self, query: Tensor, key: Tensor) -> Tensor:
        return key - self.centre[:, None, query - self.first, None]


@dataclass(frozen=True, eq=False)
class GaussianBias(Bias):
    """The logarithm of a Gaussian around the centre: σ = reach / 2."""

    window: LocalWindow

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        return self.window.distance(query, key).square() * (-2.0 / self.window.reach**2)


class GlobalFocus(nn.Module):
    """Global attention, to the full memory."""

    def __init__(self, width: int, reach: int):
        super().__init__()

    def forward(self, x: Tensor, memory: Memory, time: int) -> Focused:
        """Rule and bias for queries x (rows, queries, width), the first of which decodes position `time`."""
        return None, None


class Monotonic(nn.Module):
    """local-m: monotonic alignment. The centre is the position being decoded, or the last of the source."""

    def __init__(self, width: int, reach: int):
        super().__init__()
        self.reach = reach

    def forward(self, x: Tensor, memory: Memory, time: int) -> Focused:
        positions = torch.arange(time, time + x.size(1), device=x.device)
        return _window(torch.minimum(positions, _lengths(memory, x.size(0)) - 1), memory, self.reach), None


class Predictive(nn.Module):
    """local-p: the centre is predicted, S · sigmoid(v · tanh(W x)), with a Gaussian around it (equations 9 and 10).

    The Gaussian's logarithm is added to the scores, so weights sum to one; the paper multiplies the weights by it.
    """

    def __init__(self, width: int, reach: int):
        super().__init__()
        self.reach = reach
        self.predict = nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh(), nn.Linear(width, 1, bias=False))

    def forward(self, x: Tensor, memory: Memory, time: int) -> Focused:
        share = self.predict(x).squeeze(-1).float().sigmoid()  # bfloat16 has no integers beyond 256
        window = _window(_lengths(memory, x.size(0)) * share, memory, self.reach)
        return window, GaussianBias(window)


def _window(centre: Tensor, memory: Memory, reach: int) -> LocalWindow:
    centre = centre.reshape(memory.key.size(0), -1)  # the hypotheses of one source are queries of one row
    return LocalWindow(centre, reach, memory.end - centre.size(1))


def _lengths(memory: Memory, rows: int) -> Tensor:
    """The length of the memory of each row without padding, (rows, 1)."""
    sources = memory.key.size(0)
    full = torch.full((sources, 1), memory.length, device=memory.key.device)
    lengths = full if memory.real is None else memory.real.sum(-1, keepdim=True)
    return lengths.repeat_interleave(rows // sources, 0)


FOCUS: dict[str, Callable[[int, int], nn.Module]] = {
    "global": GlobalFocus,
    "local-m": Monotonic,
    "local-p": Predictive,
}
