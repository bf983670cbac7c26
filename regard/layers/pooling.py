"""Pooling: one vector for a text, from its last state, the mean of all, or all by attention.

Shapes: states (batch, length, width), pooled (batch, width).
"""

import torch
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.attention.recording import scope
from regard.attention.scores import Additive
from regard.layers.encoder import padding_mask
from regard.layers.inputs import TokenBatch

POOLINGS = ("last", "mean", "attention")


class LastStatePooling(nn.Module):
    """The final state of each direction: forwards the last, backwards the first. Sutskever et al. 2014."""

    def __init__(self, forwards: int):
        """`forwards` features of a state are of the forward direction, the others of the backward one."""
        super().__init__()
        self.forwards = forwards

    def forward(self, states: Tensor, text: TokenBatch) -> Tensor:
        last = states[torch.arange(len(states), device=states.device), text.lengths - 1]
        return torch.cat([last[:, : self.forwards], states[:, 0, self.forwards :]], -1)


class MeanPooling(nn.Module):
    """The mean of all states; its weights are constant, so that traces leave it out."""

    def forward(self, states: Tensor, text: TokenBatch) -> Tensor:
        return (states * text.real[..., None]).sum(1) / text.lengths[:, None]


class AttentionPooling(nn.Module):
    """A weighted mean of all states: one query, `query`, attends to them."""

    def __init__(self, attend: Attention, query: nn.Parameter):
        super().__init__()
        self.attend = attend
        self.query = query

    def forward(self, states: Tensor, text: TokenBatch) -> Tensor:
        with scope("pooling"):
            memory = self.attend.remember(states, padding_mask(text))
            return self.attend(self.query.expand(len(states), 1, -1), memory)[:, 0]


def attention_pooling(width: int, hidden: int) -> AttentionPooling:
    """v · tanh(b + W h), where the learned query is the bias b. Yang et al. 2016, equations 5–7."""
    key = nn.Linear(width, hidden, bias=False)
    same = nn.Identity()
    return AttentionPooling(Attention(same, key, same, same, score=Additive(hidden)), nn.Parameter(torch.zeros(hidden)))
