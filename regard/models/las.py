"""Listen, Attend and Spell: a recogniser that writes one token after another. Chan et al. 2016, figure 1.

    frames ─▶ pyramidal BiLSTM ─▶ states ─▶ (CTC head)
    (listen)                        │
                                  memory ◀─ attend(s) ─┐
    text ─▶ embed ─▶ LSTM over [y; c₋₁] ─▶ s ──────────┴─▶ c ─▶ MLP over [s; c] ─▶ logits
    (spell)

With score = "location", attention also reads its previous weights (Chorowski et al. 2015). With a `ctc_weight`, the
encoder has a CTC head for training and decoding with both (Watanabe et al. 2017).

Shapes: states (batch, length, states), context (rows, 1, states), weights (rows, 1, length).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.recording import scope
from regard.attention.variants import NEED_EQUAL_WIDTHS, SCORES, location_aware
from regard.layers.audio_encoder import Emissions, Encoded, check_audio
from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.dropout import Dropout
from regard.layers.inputs import AudioBatch
from regard.layers.pytree import State
from regard.layers.recurrent import TORCH, PyramidalEncoder, RNNLayers

LOCATION = "location"


@dataclass(frozen=True)
class LASConfig:
    vocabulary: int
    bins: int = 40  # features of a frame
    encoder_width: int = 256  # of each direction
    depth: int = 4
    halvings: int = 3  # layers, after the first, that read pairs of states
    cell: str = "lstm"
    embedding_width: int = 128
    width: int = 512  # the decoder's state
    decoder_depth: int = 1
    score: str = LOCATION
    score_width: int = 0  # the hidden width of the score; 0: as `width`
    filters: int = 10  # of score = "location": convolutions over the previous weights,
    kernel: int = 31  # and the states that each reads
    ctc_weight: float = 0.0  # λ of CTC in training and decoding; 0: the encoder has no CTC head
    dropout: float = 0.2
    max_positions: int = 512  # the longest transcript
    max_frames: int = 6000  # the longest recording: a minute at 10 ms per frame

    CHOICES = {"cell": tuple(TORCH), "score": (LOCATION, *SCORES)}
    MAY_BE_ZERO = ("halvings",)

    @property
    def states(self) -> int:
        """Width of the encoder's states."""
        return 2 * self.encoder_width

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.score in NEED_EQUAL_WIDTHS and self.states != self.width:
            return (
                f"score '{self.score}' compares raw states, but the encoder's are {self.states} wide and the decoder's "
                f"{self.width}: set width to {self.states}, or score = 'bilinear'"
            )
        if self.kernel % 2 == 0:
            return f"kernel {self.kernel} should be odd, so that each state is in the middle of what is read around it"
        if self.ctc_weight >= 1:
            return f"ctc_weight {self.ctc_weight} should be below 1; for CTC alone choose family = 'speech_recurrent'"
        return check_audio(self.halvings, self.depth)


PRESETS: dict[str, dict] = {
    "tiny": dict(encoder_width=64, depth=3, halvings=2, embedding_width=32, width=128),
    "small": dict(encoder_width=128, depth=3, halvings=2, embedding_width=64, width=256),
    "chan": dict(depth=4, halvings=3, width=512, decoder_depth=2, score="mlp"),  # the paper's sizes
}


class Spelling(NamedTuple):
    """A hypothesis: the decoder's state, its last context, and its last weights if the score reads them."""

    state: tuple[Tensor, ...]
    context: Tensor
    weights: Tensor | None


class LAS(AutoregressiveModel):
    task = "transcribe"
    input_type = AudioBatch

    def __init__(self, config: LASConfig):
        super().__init__()
        self.config = config
        shape = config.cell, config.bins, config.encoder_width, config.depth, config.halvings
        self.encoder = PyramidalEncoder(*shape, bidirectional=True, dropout=config.dropout)
        self.target = nn.Embedding(config.vocabulary, config.embedding_width)
        score_width = config.score_width or config.width
        if config.score == LOCATION:
            self.attend = location_aware(config.width, config.states, score_width, config.filters, config.kernel)
        else:
            self.attend = SCORES[config.score](config.width, config.states, score_width)
        inputs = config.embedding_width + config.states
        self.decoder = RNNLayers(config.cell, inputs, config.width, config.decoder_depth, config.dropout)
        self.combine = nn.Linear(config.width + config.states, config.width)
        self.output = nn.Linear(config.width, config.vocabulary)
        self.ctc_head = nn.Linear(config.states, config.vocabulary) if config.ctc_weight else None
        self.dropout = Dropout(config.dropout)
        nn.init.normal_(self.target.weight, std=0.1)

    @property
    def dummy_inputs(self) -> tuple:
        device = next(self.parameters()).device
        audio = AudioBatch.minimal(self.config.bins, self.stride, device)
        return audio, torch.zeros(1, 1, dtype=torch.long, device=device)

    @property
    def stride(self) -> int:
        """Frames per state of the encoder."""
        return 2**self.config.halvings

    def listen(self, audio: AudioBatch) -> Encoded:
        with scope("encoder"):
            return Encoded(*self.encoder(audio.frames, audio.lengths))

    def encode(self, audio: AudioBatch) -> Tensor:
        return self.listen(audio).states

    def start(self, source: AudioBatch) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.start_from(self.listen(source))

    def start_from(self, encoded: Encoded) -> State:
        """The state before the first token, of recordings that are encoded."""
        states = encoded.states
        rows, length, width = states.shape
        zeros = states.new_zeros(rows, self.decoder.state_tensors, self.config.decoder_depth, self.config.width)
        weights = states.new_zeros(rows, 1, length) if self.config.score == LOCATION else None
        memory = self.attend.remember(states, encoded.real)
        return State(memory, Spelling(self.decoder.begin(zeros), states.new_zeros(rows, 1, width), weights))

    def start_with_emissions(self, source: AudioBatch) -> tuple[State, Emissions]:
        """The same, and the logits of the CTC head."""
        assert self.ctc_head is not None
        encoded = self.listen(source)
        return self.start_from(encoded), Emissions(self.ctc_head(self.dropout(encoded.states)), encoded.lengths)

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        memory: Memory = state.source
        recurrent, context, weights = state.hypothesis
        outputs = []
        with scope("decoder"):
            for x in self.dropout(self.target(tokens)).split(1, 1):
                out, recurrent = self.decoder(torch.cat([x, context], -1), recurrent)
                with scope("cross"):
                    context, weights = self._attend(out, memory, weights)
                outputs.append(torch.tanh(self.combine(self.dropout(torch.cat([out, context], -1)))))
        return self.dropout(torch.cat(outputs, 1)), State(memory, Spelling(recurrent, context, weights))

    def _attend(self, out: Tensor, memory: Memory, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if weights is None:
            return self.attend(out, memory), None
        context, weights = self.attend.forward_with_weights(torch.cat([out, weights], -1), memory)
        return context, weights[:, 0]
