"""Recurrent sequence-to-sequence models, with or without attention.

    source ─▶ embed ─▶ encoder ─▶ states, last ─▶ bridge ─▶ initial state of the decoder
                                   │
                                memory ◀─ attend ─┐
    target ─▶ embed ───────────────────────▶ recurrent step ─▶ readout ─▶ logits

The decoder's context is a memory: none besides its initial state (Sutskever et al. 2014), the last state (Cho et al.
2014), the mean of all states, or global or local attention (Bahdanau et al. 2015, Luong et al. 2015). With the cell
"lstmn" encoder and decoder also attend to their previous states (Cheng et al. 2016).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.local import FOCUS
from regard.attention.recording import scope
from regard.attention.variants import NEED_EQUAL_WIDTHS, SCORES
from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.dropout import Dropout
from regard.layers.embedding import untieable
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import State
from regard.layers.recurrent import CELLS, RNNEncoder, RNNStates, recurrence

CONTEXTS = ("none", "last", "mean", "attention")


@dataclass(frozen=True)
class Seq2SeqConfig:
    source_vocabulary: int
    target_vocabulary: int
    embedding_width: int = 256
    width: int = 512  # the decoder's state
    encoder_width: int = 0  # of each direction; 0: as many as make both together `width`
    depth: int = 1
    decoder_depth: int = 0  # 0: as the encoder's
    cell: str = "gru"
    bidirectional: bool = True
    context: str = "attention"  # or none besides the initial state, the last state at every step, or the mean
    score: str = "additive"
    focus: str = "global"  # "local-m": near the position being decoded; "local-p": near a predicted one
    local_window: int = 10  # positions on either side of a local focus
    score_width: int = 0  # the hidden width of the score, if it has one; 0: as `width`
    order: str = "bahdanau"  # attend with the previous state, then step; "luong": step, then attend, then combine
    input_feeding: bool = False  # Luong's: the attentional state is an input of the next step
    bridge: str = "dense"  # initial state of the decoder: tanh(W h + b) of the encoder's last state h; "copy": h itself
    readout: str = "combined"  # before the output layer: tanh(W [state; context; input]); "state": the state itself
    tied: str = "none"  # "output": target embedding and output share a table; "all": the source's too
    dropout: float = 0.3
    max_positions: int = 1024  # the longest source or target

    CHOICES = {"cell": CELLS, "context": CONTEXTS, "score": tuple(SCORES), "focus": tuple(FOCUS),
               "order": ("bahdanau", "luong"), "tied": ("all", "output", "none"), "bridge": ("dense", "copy"),
               "readout": ("combined", "state")}  # fmt: skip

    @property
    def states(self) -> int:
        """Width of the encoder's states."""
        return self.one_way * (2 if self.bidirectional else 1)

    @property
    def one_way(self) -> int:
        return self.encoder_width or self.width // (2 if self.bidirectional else 1)

    def problem(self) -> str | None:
        if self.context == "attention" and self.score in NEED_EQUAL_WIDTHS and self.states != self.width:
            return (
                f"score '{self.score}' compares raw states, but the encoder's are {self.states} wide and the "
                f"decoder's {self.width}: set encoder_width to {self.width // (2 if self.bidirectional else 1)}, or "
                f"score = 'bilinear'"
            )
        if self.focus != "global" and self.context != "attention":
            return f"focus = '{self.focus}' needs context = 'attention'"
        if self.cell == "lstmn" and self.bidirectional:
            return "cell = 'lstmn' attends to previous states only: set bidirectional = false"
        if self.input_feeding and self.order != "luong":
            return "input_feeding is part of order = 'luong'; in Bahdanau's order the context is fed anyway"
        one_state = max(self.depth, self.decoder_depth) == 1 and self.cell in ("rnn", "gru")
        if self.bridge == "copy" and not (one_state and self.states == self.width):
            return (
                "bridge = 'copy' needs one layer of cell = 'gru' or 'rnn' on either side, and an encoder whose states "
                f"are as wide as the decoder's, not {self.states} and {self.width}"
            )
        if self.readout == "state" and self.context != "none":
            return f"readout = 'state' leaves context = '{self.context}' out of the output: set context = 'none'"
        return untieable(self)


PRESETS: dict[str, dict] = {
    "tiny": dict(embedding_width=64, width=128),
    "small": dict(embedding_width=256, width=512),
    "bahdanau": dict(embedding_width=620, width=1000, encoder_width=1000),  # the paper's RNNsearch
    "luong": dict(
        embedding_width=1000, width=1000, depth=4, cell="lstm", bidirectional=False, order="luong", score="bilinear",
        input_feeding=True,
    ),
}  # fmt: skip


class Hidden(NamedTuple):
    """A hypothesis: the decoder's state, the input feeding of its next step, and the next position."""

    state: Any
    fed: Tensor | None
    time: int


class Seq2Seq(AutoregressiveModel):
    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        self.depth = config.decoder_depth or config.depth
        self.source = nn.Embedding(config.source_vocabulary, config.embedding_width)
        self.target = nn.Embedding(config.target_vocabulary, config.embedding_width)
        self.dropout = Dropout(config.dropout)
        score_width = config.score_width or config.width
        shape = config.one_way, config.depth, config.bidirectional, config.dropout
        self.encoder = RNNEncoder(config.cell, config.embedding_width, *shape, score_width)
        score = config.score if config.context == "attention" else "uniform"
        self.attend = None if config.context == "none" else SCORES[score](config.width, config.states, score_width)
        self.focus = FOCUS[config.focus](config.width, config.local_window)
        context = config.states if self.attend else 0
        fed = context if config.order == "bahdanau" else config.width if config.input_feeding else 0
        shape = config.embedding_width + fed, config.width, self.depth
        self.decoder = recurrence(config.cell, *shape, config.dropout, score_width)
        initial = self.decoder.state_tensors * self.depth * config.width
        self.bridge = nn.Linear(config.states, initial) if config.bridge == "dense" else None
        is_state = config.readout == "state"
        combined = config.width if config.order == "luong" or is_state else config.embedding_width
        inputs = config.width + context + (config.embedding_width if config.order == "bahdanau" else 0)
        self.combine = None if is_state else nn.Linear(inputs, combined)
        self.down = nn.Linear(combined, config.embedding_width) if combined != config.embedding_width else nn.Identity()
        self.output = nn.Linear(config.embedding_width, config.target_vocabulary)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=0.1)
        if config.tied != "none":
            self.output.weight = self.target.weight
        if config.tied == "all":
            self.source = self.target

    def _encode(self, source: TokenBatch) -> RNNStates:
        with scope("encoder"):
            return self.encoder(self.dropout(self.source(source.tokens)), source.lengths)

    def encode(self, source: TokenBatch) -> Tensor:
        return self._encode(source).states

    def start(self, source: TokenBatch) -> State:
        states, last = self._encode(source)
        if self.attend is None:
            memory = None
        elif self.config.context == "last":
            memory = self.attend.remember(last[:, None])
        else:
            memory = self.attend.remember(states, source.real)
        if self.config.context == "mean":
            last = (states * source.real[:, :, None]).sum(1) / source.lengths[:, None]
        first = last if self.bridge is None else torch.tanh(self.bridge(last))
        first = first.unflatten(-1, (-1, self.depth, self.config.width))
        fed = first.new_zeros(first.size(0), 1, self.config.width) if self.config.input_feeding else None
        return State(memory, Hidden(self.decoder.begin(first), fed, 0))

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        memory = state.source
        hidden = state.hypothesis
        embedded = self.dropout(self.target(tokens))
        previous_state = self.config.order == "bahdanau" and self.config.context == "attention"
        stepwise = self.config.input_feeding or previous_state  # else the context does not depend on the last step
        step = self._bahdanau if self.config.order == "bahdanau" else self._luong
        outputs = []
        with scope("decoder"):
            for x in embedded.split(1, 1) if stepwise else [embedded]:
                combined, hidden = step(x, memory, hidden)
                outputs.append(combined)
        combined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return self.dropout(self.down(combined)), State(memory, hidden)

    def _bahdanau(self, x: Tensor, memory: Memory | None, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """c = attend(s₋₁); s = f(s₋₁, x, c); readout(s, c, x). Bahdanau et al. 2015, A.2.2."""
        before = self.decoder.last(hidden.state)[:, None].expand(-1, x.size(1), -1)
        context = self._attend(before, memory, hidden.time)
        out, hidden = self._recur(torch.cat([x, *context], -1), hidden)
        return self._read(out, *context, x), hidden

    def _luong(self, x: Tensor, memory: Memory | None, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """s = f(s₋₁, x [, h̃₋₁]); c = attend(s); h̃ = tanh(W [s; c]). Luong et al. 2015, equation 5."""
        time = hidden.time
        out, hidden = self._recur(x if hidden.fed is None else torch.cat([x, hidden.fed], -1), hidden)
        combined = self._read(out, *self._attend(out, memory, time))
        return combined, hidden if hidden.fed is None else hidden._replace(fed=combined)

    def _read(self, state: Tensor, *others: Tensor) -> Tensor:
        return state if self.combine is None else torch.tanh(self.combine(torch.cat([state, *others], -1)))

    def _attend(self, x: Tensor, memory: Memory | None, time: int) -> tuple[Tensor, ...]:
        """The context, if the decoder has one."""
        if self.attend is None or memory is None:
            return ()
        with scope("cross"):
            return (self.attend(x, memory, *self.focus(x, memory, time)),)

    def _recur(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        out, state = self.decoder(x, hidden.state)
        return out, hidden._replace(state=state, time=hidden.time + x.size(1))
