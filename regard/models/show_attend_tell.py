"""Show, Attend and Tell: a caption by an LSTM that attends to a grid of image features. Xu et al. 2015.

    image ─▶ convolutions ─▶ features a₁ … a_L ─▶ mean ─▶ initial state
                               │
                            memory ◀─ attend(h₋₁), gated ─┐
    caption ─▶ embed ────────────────────────────▶ LSTM step ─▶ deep output ─▶ logits

Shapes: features (batch, positions, width of the encoder); one step of x, context and hidden state is (rows, 1, width).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.recording import scope
from regard.attention.variants import bahdanau
from regard.layers.dropout import Dropout
from regard.layers.inputs import ImageBatch
from regard.layers.pytree import State
from regard.layers.recurrent import RNNLayers
from regard.models.vision import ENCODERS, VISION_FAMILIES, ImageToText


@dataclass(frozen=True)
class ShowAttendTellConfig:
    vocabulary: int
    encoder: Any  # the config of a vision encoder
    embedding_width: int = 256
    width: int = 512  # the LSTM's state
    score_width: int = 0  # the hidden width of the attention score; 0: as `width`
    dropout: float = 0.3
    max_positions: int = 128  # the longest caption

    CHOICES = {}
    COMPONENTS = {"encoder": VISION_FAMILIES}

    def problem(self) -> str | None:
        return None


PRESETS: dict[str, dict] = {
    "tiny": dict(encoder=dict(family="cnn", preset="tiny"), embedding_width=64, width=128),
    "small": dict(encoder=dict(family="cnn", preset="small"), embedding_width=256, width=512),
}


class ShowAttendTell(ImageToText):
    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.config = config
        features = config.encoder.width
        self.encoder = ENCODERS[type(config.encoder)](config.encoder)
        self.target = nn.Embedding(config.vocabulary, config.embedding_width)
        self.attend = bahdanau(config.width, features, config.score_width or config.width)
        self.gate = nn.Linear(config.width, features)
        self.decoder = RNNLayers("lstm", config.embedding_width + features, config.width)
        self.bridge = nn.Linear(features, self.decoder.state_tensors * config.width)
        self.hidden_output = nn.Linear(config.width, config.embedding_width)
        self.context_output = nn.Linear(features, config.embedding_width, bias=False)
        self.output = nn.Linear(config.embedding_width, config.vocabulary)
        self.dropout = Dropout(config.dropout)
        nn.init.normal_(self.target.weight, std=0.1)

    def start(self, source: ImageBatch) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The features, and the LSTM's first state from their mean: section 3.1.2."""
        features = self.encode(source)
        first = torch.tanh(self.bridge(features.mean(1))).unflatten(-1, (-1, 1, self.config.width))
        return State(self.attend.remember(features), self.decoder.begin(first))

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        memory, hidden = state
        outputs = []
        with scope("decoder"):
            for x in self.dropout(self.target(tokens)).split(1, 1):
                before = self.decoder.last(hidden)[:, None]
                with scope("cross"):
                    context = self.attend(before, memory)
                context = torch.sigmoid(self.gate(before)) * context  # β of section 4.2.1
                out, hidden = self.decoder(torch.cat([x, context], -1), hidden)
                outputs.append(x + self.hidden_output(self.dropout(out)) + self.context_output(context))  # equation 7
        return self.dropout(torch.cat(outputs, 1)), State(memory, hidden)
