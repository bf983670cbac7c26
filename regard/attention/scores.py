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


def uniform(query: Tensor, key: Tensor) -> Tensor:
    """Equal scores for all keys: attention becomes mean pooling."""
    return query.new_zeros(*query.shape[:-1], key.size(-2))


def weigh(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of scores over unmasked keys; zeros for a row that is fully masked."""
    if mask is None:
        return scores.softmax(-1)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
