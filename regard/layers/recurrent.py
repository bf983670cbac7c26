"""Recurrent layers: one state after another.

Shapes: x (batch, length, width), lengths (batch,). What a layer knows between two calls is a value, rows first, so that
a search may copy, reorder and drop it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.scores import Additive
from regard.attention.trace import scope
from regard.layers.dropout import Dropout

TORCH: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RNNLayers(nn.Module):
    """Torch's layers of one kind, on top of each other."""

    def __init__(self, cell: str, inputs: int, width: int, depth: int = 1, dropout: float = 0.0):
        super().__init__()
        between = dropout if depth > 1 else 0.0
        self.layers = TORCH[cell](inputs, width, depth, batch_first=True, dropout=between)
        self.parts = 2 if cell == "lstm" else 1  # of a state: what it says, and what it keeps to itself

    def begin(self, first: Tensor) -> tuple[Tensor, ...]:
        """A state from (rows, parts, depth, width)."""
        return tuple(first.unbind(1))

    def last(self, state: tuple[Tensor, ...]) -> Tensor:
        """What the top layer said last, (rows, width)."""
        return state[0][:, -1]

    def forward(self, x: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The top layer's outputs, and the state after them; torch keeps depth before rows."""
        if state is None:
            out, after = self.layers(x)
        else:
            before = tuple(part.transpose(0, 1).contiguous() for part in state)
            out, after = self.layers(x, before if self.parts == 2 else before[0])
        after = after if self.parts == 2 else (after,)
        return out, tuple(part.transpose(0, 1) for part in after)


class LSTMNState(NamedTuple):
    """What an LSTMN layer knows: all its past states and cells, and the summary it last made of them."""

    past: Memory  # values are (state; cell)
    summary: Tensor  # (rows, width)


class StateProjection(nn.Linear):
    """A projection of the first `in_features` of each vector: of the state, not of the cell behind it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[..., : self.in_features])


class LSTMNLayer(nn.Module):
    """One layer of an LSTMN: before each step it looks back over its own states. Cheng et al. 2016, equations 4–9.

    α = attend([x; h̃₋₁] over h₁ … h₋₁)      (h̃; c̃) = Σ αᵢ (hᵢ; cᵢ)
    c = f ⊙ c̃ + i ⊙ ĉ,  h = o ⊙ tanh(c)     with the gates from x and h̃
    """

    def __init__(self, inputs: int, width: int, score_width: int):
        super().__init__()
        query, key = nn.Linear(inputs + width, score_width, bias=False), StateProjection(width, score_width, bias=False)
        self.attend = Attention(query, key, nn.Identity(), nn.Identity(), score=Additive(score_width))
        self.see, self.recall = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def begin(self, first: Tensor) -> LSTMNState:
        """A tape with one state and its cell, (rows, 2, width)."""
        return LSTMNState(self.attend.remember(first.flatten(1)[:, None]), first[:, 0])

    def forward(self, x: Tensor, tape: LSTMNState) -> tuple[Tensor, LSTMNState]:
        (past, summary), outputs = tape, []
        with scope("past"):
            for now, seen in zip(x.unbind(1), self.see(x).unbind(1), strict=True):
                recalled = self.attend(torch.cat([now, summary], -1)[:, None], past)[:, 0]
                summary, cell = recalled.chunk(2, -1)
                enter, keep, leave, new = (seen + self.recall(summary)).chunk(4, -1)
                cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
                state = leave.sigmoid() * cell.tanh()
                past = past.append(self.attend.remember(torch.cat([state, cell], -1)[:, None]))
                outputs.append(state)
        return torch.stack(outputs, 1), LSTMNState(past, summary)


class LSTMN(nn.Module):
    """The recurrent layers whose memory is a tape instead of one vector."""

    parts = 2

    def __init__(self, inputs: int, width: int, depth: int = 1, dropout: float = 0.0, score_width: int = 0):
        super().__init__()
        self.width, self.depth = width, depth
        sizes = [inputs] + [width] * (depth - 1)
        self.layers = nn.ModuleList(LSTMNLayer(size, width, score_width or width) for size in sizes)
        self.dropout = Dropout(dropout)

    def begin(self, first: Tensor) -> tuple[LSTMNState, ...]:
        return tuple(layer.begin(each) for layer, each in zip(self.layers, first.unbind(2), strict=True))  # type: ignore

    def last(self, state: tuple[LSTMNState, ...]) -> Tensor:
        return state[-1].past.value[:, 0, -1, : self.width]

    def forward(self, x: Tensor, state: tuple[LSTMNState, ...] | None = None) -> tuple[Tensor, tuple[LSTMNState, ...]]:
        state = state or self.begin(x.new_zeros(x.size(0), self.parts, self.depth, self.width))
        tapes = []
        for number, (layer, tape) in enumerate(zip(self.layers, state, strict=True)):
            with scope(f"layers.{number}"):
                x, tape = layer(x if number == 0 else self.dropout(x), tape)
            tapes.append(tape)
        return x, tuple(tapes)


CELLS = (*TORCH, "lstmn")


def recurrence(
    cell: str, inputs: int, width: int, depth: int = 1, dropout: float = 0.0, score_width: int = 0
) -> "RNNLayers | LSTMN":
    """Recurrent layers by the name a recipe gives them; `score_width` is for those that look."""
    if cell == "lstmn":
        return LSTMN(inputs, width, depth, dropout, score_width)
    return RNNLayers(cell, inputs, width, depth, dropout)


class RNNStates(NamedTuple):
    """What was read: a state for each place, and the last one (of both directions)."""

    states: Tensor  # (batch, length, width)
    last: Tensor  # (batch, width)


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row back to front, its padding left where it is."""
    places = torch.arange(x.size(1), device=x.device)
    index = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
    return x.gather(1, index[:, :, None].expand_as(x))


class RNNEncoder(nn.Module):
    """A stack of recurrent layers, each reading forwards, or both ways and joined.

    Rows are reversed by their own length, so that padding always comes last and never reaches a real state.
    """

    def __init__(
        self,
        cell: str,
        inputs: int,
        width: int,
        depth: int,
        bidirectional: bool,
        dropout: float,
        score_width: int = 0,
    ):
        super().__init__()
        self.width = width * (2 if bidirectional else 1)
        sizes = [inputs] + [self.width] * (depth - 1)
        layer = partial(recurrence, cell, width=width, score_width=score_width)
        self.forwards = nn.ModuleList(layer(inputs=size) for size in sizes)
        self.backwards = nn.ModuleList(layer(inputs=size) for size in sizes if bidirectional)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> RNNStates:
        last = (lengths - 1)[:, None, None]
        forwards = backwards = x
        for number, layer in enumerate(self.forwards):
            x = x if number == 0 else self.dropout(x)
            with scope(f"forwards.{number}"):
                forwards, _ = layer(x)
            if self.backwards:
                backwards, _ = self.backwards[number](reverse(x, lengths))
                x = torch.cat([forwards, reverse(backwards, lengths)], -1)
            else:
                x = forwards
        ends = [states.gather(1, last.expand(-1, 1, states.size(-1))).squeeze(1) for states in (forwards, backwards)]
        return RNNStates(x, torch.cat(ends, -1) if self.backwards else ends[0])


def recurs(network: nn.Module) -> bool:
    """Whether it steps from token to token somewhere."""
    return any(isinstance(module, nn.RNNBase | LSTMN) for module in network.modules())
