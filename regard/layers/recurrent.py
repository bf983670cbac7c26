"""Recurrent readers: one state after another.

Shapes: x (batch, length, width), lengths (batch,).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Reading(NamedTuple):
    """What was read: a state for each place, and the last one (of both directions)."""

    states: Tensor  # (batch, length, width)
    last: Tensor  # (batch, width)


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row back to front, its padding left where it is."""
    place = torch.arange(x.size(1), device=x.device)
    index = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
    return x.gather(1, index[:, :, None].expand_as(x))


class Reader(nn.Module):
    """A stack of recurrent layers, each reading forwards, or both ways and joined.

    Rows are reversed by their own length, so that padding always comes last and never reaches a real state.
    """

    def __init__(self, cell: str, inputs: int, width: int, depth: int, bidirectional: bool, dropout: float):
        super().__init__()
        self.width = width * (2 if bidirectional else 1)
        sizes = [inputs] + [self.width] * (depth - 1)
        self.forwards = nn.ModuleList(CELLS[cell](size, width, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(CELLS[cell](size, width, batch_first=True) for size in sizes if bidirectional)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Reading:
        last = (lengths - 1)[:, None, None]
        forwards = backwards = x
        for number, layer in enumerate(self.forwards):
            x = x if number == 0 else self.dropout(x)
            forwards, _ = layer(x)
            if self.backwards:
                backwards, _ = self.backwards[number](reverse(x, lengths))
                x = torch.cat([forwards, reverse(backwards, lengths)], -1)
            else:
                x = forwards
        ends = [states.gather(1, last.expand(-1, 1, states.size(-1))).squeeze(1) for states in (forwards, backwards)]
        return Reading(x, torch.cat(ends, -1) if self.backwards else ends[0])
