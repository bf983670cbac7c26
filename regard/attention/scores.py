"""Scores: how well a key answers a query.

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
    """The dot product times a scale: the one score that the fused kernel knows."""

    scale: Callable[[int], float]

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT * self.scale(key.size(-1))


dot = Product(lambda width: 1.0)
"""Luong et al. 2015, equation 8, "dot"."""

scaled_dot = Product(lambda width: width**-0.5)
"""Vaswani et al. 2017, equation 1."""

PRODUCTS = {"scaled_dot": scaled_dot, "dot": dot}


class Additive(nn.Module):
    """A small network compares query and key: v · tanh(q + k). Bahdanau et al. 2015, A.1.2."""

    def __init__(self, width: int):
        super().__init__()
        self.energy = nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.energy(torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))).squeeze(-1)


def uniform(query: Tensor, key: Tensor) -> Tensor:
    """The score that does not look: every key counts the same, and attention is mean pooling."""
    return query.new_zeros(*query.shape[:-1], key.size(-2))


def weigh(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores → weights that sum to one over what may be seen; a row with nothing to see gives zeros."""
    if mask is None:
        return scores.softmax(-1)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)
