"""ConvS2S (Gehring et al. 2017): gated convolutions in encoder and decoder, with attention in every decoder layer.

    source ─▶ embed + positions ─▶ [conv ─▶ GLU ─▶ + ] × depth ─▶ memory
                                                                    │ cross, in each
    target ─▶ embed + positions ─▶ [conv ─▶ GLU ─▶ attend ─▶ + ] × depth ─▶ logits

Decoder convolutions are causal. Between two steps each layer caches its last positions, so decoding is linear in the
output length.
"""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.recording import scope
from regard.attention.scores import dot
from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.convolution import Convolution, ConvState
from regard.layers.dropout import Dropout
from regard.layers.embedding import both_sides, untieable
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import State

ROOT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two


@dataclass(frozen=True)
class ConvS2SConfig:
    source_vocabulary: int
    target_vocabulary: int
    embedding_width: int = 256
    width: int = 256  # of the states between convolutions
    depth: int = 4
    decoder_depth: int = 0  # 0: as the encoder's
    kernel: int = 3
    positions: str = "learned"
    tied: str = "none"  # "output": target embedding and output share a table; "all": the source's too
    dropout: float = 0.2
    max_positions: int = 512  # the longest source or target

    CHOICES = {"positions": ("learned", "none"), "tied": ("all", "output", "none")}

    def problem(self) -> str | None:
        if self.kernel % 2 == 0:
            return f"kernel {self.kernel} should be odd: the encoder's windows are centred"
        return untieable(self)


CONVS2S_PRESETS: dict[str, dict] = {
    "tiny": dict(embedding_width=64, width=64, depth=2),
    "small": dict(embedding_width=256, width=256, depth=4),
    "iwslt": dict(embedding_width=256, width=256, depth=4, decoder_depth=3),  # the authors' recipe for little data
}


class ConvEncoderLayer(nn.Module):
    """√½ · (x + GLU(convolution(x))). Gehring et al. 2017, section 3.2."""

    def __init__(self, width: int, kernel: int, dropout: float):
        super().__init__()
        self.convolution = Convolution(width, 2 * width, kernel)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return (x + F.glu(self.convolution(self.dropout(x)), -1)) * ROOT_HALF


class ConvDecoderLayer(nn.Module):
    """A causal convolution and a GLU, then attention to the source. Gehring et al. 2017, section 3.3."""

    def __init__(self, width: int, embedding: int, kernel: int, dropout: float):
        super().__init__()
        self.convolution = Convolution(width, 2 * width, kernel)
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(width, embedding)
        same = nn.Identity()  # keys and values are not projected: one memory serves all layers
        self.attend = Attention(same, same, same, nn.Linear(embedding, width), score=dot)

    def forward(self, x: Tensor, past: Tensor, embedded: Tensor, source: Memory) -> tuple[Tensor, Tensor]:
        """`embedded` are the target embeddings: a query is W h + b + embedding, equation 1."""
        h, past = self.convolution.after(past, self.dropout(x))
        h = F.glu(h, -1)
        with scope("cross"):
            context = self.attend((self.query(h) + embedded) * ROOT_HALF, source)
        return (x + (h + context) * ROOT_HALF) * ROOT_HALF, past


class ConvS2S(AutoregressiveModel):
    """Gehring et al. 2017, without weight normalisation and scaled encoder gradients, which Adam mostly cancels."""

    def __init__(self, config: ConvS2SConfig):
        super().__init__()
        self.config = config
        self.source, self.target = both_sides(config, config.embedding_width, scaled=False)
        outer = config.embedding_width
        inner = config.width
        self.encoder_in = nn.Linear(outer, inner)
        self.encoder_out = nn.Linear(inner, outer)
        self.decoder_in = nn.Linear(outer, inner)
        self.decoder_out = nn.Linear(inner, outer)
        shape = config.kernel, config.dropout
        self.encoder = nn.ModuleList(ConvEncoderLayer(inner, *shape) for _ in range(config.depth))
        decoder_depth = config.decoder_depth or config.depth
        self.decoder = nn.ModuleList(ConvDecoderLayer(inner, outer, *shape) for _ in range(decoder_depth))
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.embedding_width, config.target_vocabulary)
        self.apply(self._initialise)
        if config.tied != "none":
            self.output.weight = self.target.table.weight

    def encode(self, source: TokenBatch) -> Tensor:
        return self._encode(source, self.source(source.tokens))

    def _encode(self, source: TokenBatch, embedded: Tensor) -> Tensor:
        x = self.encoder_in(embedded)
        for layer in self.encoder:
            x = layer(x * source.real[:, :, None])  # padding is zero, as before the first position
        return self.encoder_out(x)

    def start(self, source: TokenBatch) -> State:
        """One memory for all layers: keys are the encoder's outputs, values add the embeddings. Equation 2."""
        embedded = self.source(source.tokens)
        states = self._encode(source, embedded)
        scale = source.lengths[:, None, None].sqrt().to(states.dtype)  # a mean of n values has 1/√n of their deviation
        value = (states + embedded) * ROOT_HALF * scale
        memory = Memory(states[:, None], value[:, None], source.real)
        return State(memory, ConvState.empty(self.decoder, states))

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        cache: ConvState = state.hypothesis
        embedded = self.target(tokens, cache.time)
        x = self.decoder_in(embedded)
        later = []
        with scope("decoder"):
            for index, (layer, past) in enumerate(zip(self.decoder, cache.past, strict=True)):
                with scope(f"blocks.{index}"):
                    x, past = layer(x, past, embedded, state.source)
                later.append(past)
        return self.dropout(self.decoder_out(x)), State(state.source, ConvState(tuple(later), cache.time + x.size(1)))

    def _initialise(self, module: nn.Module) -> None:
        """Keeps the variance from layer to layer; a GLU reduces it to a quarter. Gehring et al. 2017, section 3.5."""
        if isinstance(module, nn.Linear):
            _keep_variance(module, 1.0)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
        elif isinstance(module, ConvEncoderLayer | ConvDecoderLayer):
            _keep_variance(module.convolution.linear, 4.0 * (1 - self.config.dropout))


def _keep_variance(linear: nn.Linear, gain: float) -> None:
    nn.init.normal_(linear.weight, std=math.sqrt(gain / linear.in_features))
    nn.init.zeros_(linear.bias)
