"""Pooling: one vector for a text, from its last state, the mean of all, all by attention, or last, maximum and mean.

Shapes: states (batch, length, width), pooled (batch, width).
"""

import torch
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.attention.recording import scope
from regard.attention.scores import Additive
from regard.layers.dropout import Dropout
from regard.layers.encoder import padding_mask
from regard.layers.inputs import TokenBatch

POOLINGS = ("last", "mean", "attention", "concat")

CONCAT_WIDTH = 50  # of the hidden layer over concatenated poolings: Howard & Ruder 2018, section 4.1


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


class ConcatPooling(nn.Module):
    """ReLU(W [last; max; mean] + b). Howard & Ruder 2018, section 3.3.

    Layer norm takes the place of the paper's batch norm, so that other texts of a batch change nothing.
    """

    def __init__(self, width: int, forwards: int, dropout: float):
        """`forwards` of the `width` features of a state are of the forward direction."""
        super().__init__()
        self.width = CONCAT_WIDTH
        self.last = LastStatePooling(forwards)
        self.mean = MeanPooling()
        self.norm = nn.LayerNorm(3 * width)
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(3 * width, self.width)

    def forward(self, states: Tensor, text: TokenBatch) -> Tensor:
        largest = states.masked_fill(~text.real[..., None], -torch.inf).amax(1)
        pooled = torch.cat([self.last(states, text), largest, self.mean(states, text)], -1)
        return self.dense(self.dropout(self.norm(pooled))).relu()


def pooling_of(kind: str, width: int, forwards: int, score_width: int = 0, dropout: float = 0.0) -> nn.Module:
    """A new pooling of POOLINGS; `forwards` of the `width` features of a state are of the forward direction."""
    if kind == "last":
        return LastStatePooling(forwards)
    if kind == "mean":
        return MeanPooling()
    if kind == "concat":
        return ConcatPooling(width, forwards, dropout)
    return attention_pooling(width, score_width or width)
