"""Scores: how well a key matches a query.

Shapes, throughout:
    query   (batch, heads, queries, width)
    key     (batch, heads, length,  width)
    scores  (batch, heads, queries, length)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Product:
    """The scaled dot product: the score that the fused kernel computes."""

    scale: Callable[[int], float]

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT * self.scale(key.size(-1))


dot = Product(lambda width: 1.0)
"""Luong et al. 2015, equation 8, "dot"."""

scaled_dot = Product(lambda width: width**-0.5)
"""Vaswani et al. 2017, equation 1."""

PRODUCTS = {"scaled_dot": scaled_dot, "dot": dot}


class Additive(nn.Module):
    """v · tanh(q + k). Bahdanau et al. 2015, A.1.2."""

    def __init__(self, width: int):
        super().__init__()
        self.energy = nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.energy(torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))).squeeze(-1)


class LocationAware(Additive):
    """v · tanh(q + k + U f), where f = F ∗ α: a convolution over the previous weights. Chorowski et al. 2015, 2.1.

    In `query`, the previous weights, one for each key, follow the query.
    """

    def __init__(self, width: int, filters: int, kernel: int):
        super().__init__(width)
        self.filters = nn.Conv1d(1, filters, kernel, padding=kernel // 2, bias=False)
        self.location = nn.Linear(filters, width, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, previous = query.split([key.size(-1), key.size(-2)], -1)
        features = self.filters(previous.reshape(-1, 1, previous.size(-1))).mT
        located = self.location(features).view(*previous.shape, -1)
        return self.energy(torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3) + located)).squeeze(-1)


class QueryProjection(nn.Linear):
    """Projects the first `in_features` of each vector; the previous weights that follow them are kept."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x[..., : self.in_features]), x[..., self.in_features :]], -1)


def uniform(query: Tensor, key: Tensor) -> Tensor:
    """Equal scores for all keys: attention becomes mean pooling."""
    return query.new_zeros(*query.shape[:-1], key.size(-2))


def weigh(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of scores over unmasked keys; zeros for a row that is fully masked."""
    if mask is None:
        return scores.softmax(-1)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
