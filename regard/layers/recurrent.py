"""Recurrent layers.

Shapes: x (batch, length, width), lengths (batch,). The state between two calls is a value, with the rows first, so that
a search can copy, reorder and drop it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.recording import scope
from regard.attention.scores import Additive
from regard.layers.dropout import Dropout
from regard.layers.protocols import Network

TORCH: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RNNLayers(nn.Module):
    """A stack of torch's recurrent layers."""

    def __init__(self, cell: str, inputs: int, width: int, depth: int = 1, dropout: float = 0.0):
        super().__init__()
        between = dropout if depth > 1 else 0.0
        self.layers = TORCH[cell](inputs, width, depth, batch_first=True, dropout=between)
        self.state_tensors = 2 if cell == "lstm" else 1  # the hidden state, and the cell of an LSTM

    def begin(self, first: Tensor) -> tuple[Tensor, ...]:
        """A state from (rows, state_tensors, depth, width)."""
        return tuple(first.unbind(1))

    def last(self, state: tuple[Tensor, ...]) -> Tensor:
        """The last output of the top layer, (rows, width)."""
        return state[0][:, -1]

    def forward(self, x: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The outputs of the top layer, and the new state; torch has the depth before the rows."""
        if state is None:
            out, after = self.layers(x)
        else:
            before = tuple(tensor.transpose(0, 1).contiguous() for tensor in state)
            out, after = self.layers(x, before if self.state_tensors == 2 else before[0])
        after = after if self.state_tensors == 2 else (after,)
        return out, tuple(tensor.transpose(0, 1) for tensor in after)


class WeightDropLSTM(nn.LSTM):
    """One LSTM layer with DropConnect (Wan et al. 2013) on the hidden-to-hidden weights. Merity et al. 2018, section 2.

    One mask is drawn for each call, so that the same weights are dropped at all positions.
    """

    def __init__(self, inputs: int, width: int, rate: float):
        super().__init__(inputs, width, batch_first=True)
        self.weight_dropout = Dropout(rate)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # type: ignore[override]
        """The outputs, and the new hidden state and cell (rows, width); torch has the depth before the rows."""
        weights = [self.weight_ih_l0, self.weight_dropout(self.weight_hh_l0), self.bias_ih_l0, self.bias_hh_l0]
        before = [tensor[None] for tensor in state]
        out, hidden, cell = torch.lstm(x, before, weights, True, 1, 0.0, self.training, False, True)
        return out, (hidden[0], cell[0])


class LSTMNState(NamedTuple):
    """The state of an LSTMN layer: all previous states and cells (its tapes), and its last summary of them."""

    past: Memory  # values are (state; cell)
    summary: Tensor  # (rows, width)


class StateProjection(nn.Linear):
    """A projection of the first `in_features` of each vector: the state, without the cell that follows it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[..., : self.in_features])


class LSTMNLayer(nn.Module):
    """One LSTMN layer: at each step it attends to its previous states. Cheng et al. 2016, equations 4–9.

    α = attend([x; h̃₋₁] over h₁ … h₋₁)      (h̃; c̃) = Σ αᵢ (hᵢ; cᵢ)
    c = f ⊙ c̃ + i ⊙ ĉ,  h = o ⊙ tanh(c)     with the gates from x and h̃
    """

    def __init__(self, inputs: int, width: int, score_width: int):
        super().__init__()
        query = nn.Linear(inputs + width, score_width, bias=False)
        key = StateProjection(width, score_width, bias=False)
        self.attend = Attention(query, key, nn.Identity(), nn.Identity(), score=Additive(score_width))
        self.input_gates = nn.Linear(inputs, 4 * width)
        self.hidden_gates = nn.Linear(width, 4 * width, bias=False)

    def begin(self, first: Tensor) -> LSTMNState:
        """The state from one hidden state and its cell, (rows, 2, width)."""
        return LSTMNState(self.attend.remember(first.flatten(1)[:, None]), first[:, 0])

    def forward(self, x: Tensor, state: LSTMNState) -> tuple[Tensor, LSTMNState]:
        past, summary = state
        outputs = []
        with scope("past"):
            for token, projected in zip(x.unbind(1), self.input_gates(x).unbind(1), strict=True):
                attended = self.attend(torch.cat([token, summary], -1)[:, None], past)[:, 0]
                summary, cell = attended.chunk(2, -1)
                input_gate, forget_gate, output_gate, candidate = (projected + self.hidden_gates(summary)).chunk(4, -1)
                cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
                hidden = output_gate.sigmoid() * cell.tanh()
                past = past.append(self.attend.remember(torch.cat([hidden, cell], -1)[:, None]))
                outputs.append(hidden)
        return torch.stack(outputs, 1), LSTMNState(past, summary)


class LSTMN(nn.Module):
    """A stack of LSTMN layers, whose memory is all previous states instead of one vector. Cheng et al. 2016."""

    state_tensors = 2

    def __init__(self, inputs: int, width: int, depth: int = 1, dropout: float = 0.0, score_width: int = 0):
        super().__init__()
        self.width = width
        self.depth = depth
        sizes = [inputs] + [width] * (depth - 1)
        self.layers = nn.ModuleList(LSTMNLayer(size, width, score_width or width) for size in sizes)
        self.dropout = Dropout(dropout)

    def begin(self, first: Tensor) -> tuple[LSTMNState, ...]:
        return tuple(layer.begin(state) for layer, state in zip(self.layers, first.unbind(2), strict=True))  # type: ignore

    def last(self, state: tuple[LSTMNState, ...]) -> Tensor:
        return state[-1].past.value[:, 0, -1, : self.width]

    def forward(self, x: Tensor, state: tuple[LSTMNState, ...] | None = None) -> tuple[Tensor, tuple[LSTMNState, ...]]:
        state = state or self.begin(x.new_zeros(x.size(0), self.state_tensors, self.depth, self.width))
        states = []
        for index, (layer, layer_state) in enumerate(zip(self.layers, state, strict=True)):
            with scope(f"layers.{index}"):
                x, layer_state = layer(x if index == 0 else self.dropout(x), layer_state)
            states.append(layer_state)
        return x, tuple(states)


CELLS = (*TORCH, "lstmn")


def recurrence(
    cell: str, inputs: int, width: int, depth: int = 1, dropout: float = 0.0, score_width: int = 0
) -> "RNNLayers | LSTMN":
    """Recurrent layers by the name of their cell in recipes; `score_width` is for those with attention."""
    if cell == "lstmn":
        return LSTMN(inputs, width, depth, dropout, score_width)
    return RNNLayers(cell, inputs, width, depth, dropout)


class RNNStates(NamedTuple):
    """The outputs of an RNN encoder: a state for each position, and the final state (of both directions)."""

    states: Tensor  # (batch, length, width)
    last: Tensor  # (batch, width)


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row, without its padding."""
    positions = torch.arange(x.size(1), device=x.device)
    index = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    return x.gather(1, index[:, :, None].expand_as(x))


class RNNEncoder(nn.Module):
    """A stack of recurrent layers, unidirectional or bidirectional.

    Rows are reversed without their padding, which therefore never affects a real state.
    """

    def __init__(
        self, cell: str, inputs: int, width: int, depth: int, bidirectional: bool, dropout: float, score_width: int = 0
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
        for index, layer in enumerate(self.forwards):
            x = x if index == 0 else self.dropout(x)
            with scope(f"forwards.{index}"):
                forwards, _ = layer(x)
            if self.backwards:
                backwards, _ = self.backwards[index](reverse(x, lengths))
                x = torch.cat([forwards, reverse(backwards, lengths)], -1)
            else:
                x = forwards
        final = [states.gather(1, last.expand(-1, 1, states.size(-1))).squeeze(1) for states in (forwards, backwards)]
        return RNNStates(x, torch.cat(final, -1) if self.backwards else final[0])


def join_pairs(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Each two successive states as one of twice the width; the last one of an odd number is followed by zeros."""
    real = torch.arange(x.size(1), device=x.device) < lengths[:, None]
    x = F.pad(x.masked_fill(~real[:, :, None], 0.0), (0, 0, 0, x.size(1) % 2))
    return x.unflatten(1, (-1, 2)).flatten(2), (lengths + 1) // 2


class PyramidalEncoder(nn.Module):
    """Recurrent layers; `halvings` of them, after the first, read pairs of states. Chan et al. 2016, equation 4."""

    def __init__(
        self, cell: str, inputs: int, width: int, depth: int, halvings: int, bidirectional: bool, dropout: float
    ):
        super().__init__()
        self.halvings = halvings
        self.width = width * (2 if bidirectional else 1)
        sizes = [inputs] + [self.width * (2 if index <= halvings else 1) for index in range(1, depth)]
        self.layers = nn.ModuleList(RNNEncoder(cell, size, width, 1, bidirectional, 0.0) for size in sizes)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The states of the last layer, and how many each sequence has."""
        for index, layer in enumerate(self.layers):
            if 1 <= index <= self.halvings:
                x, lengths = join_pairs(x, lengths)
            x = layer(x if index == 0 else self.dropout(x), lengths).states
        return x, lengths


def recurs(network: nn.Module | Network) -> bool:
    """Whether a network has recurrent layers."""
    return any(isinstance(module, nn.RNNBase | LSTMN) for module in network.modules())
