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
from regard.attention.scores import dot
from regard.attention.trace import scope
from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.convolution import Convolution, Windows
from regard.layers.dropout import Dropout
from regard.layers.embedding import both_sides, untieable
from regard.layers.inputs import TokenBatch
from regard.layers.state import State

ROOT_HALF = math.sqrt(0.5)  # a sum of two parts keeps the variance of one


@dataclass(frozen=True)
class ConvS2SConfig:
    source_vocabulary: int
    target_vocabulary: int
    embedding_width: int = 256
    width: int = 256  # of what the convolutions pass on
    depth: int = 4
    decoder_depth: int = 0  # 0: as the encoder's
    kernel: int = 3
    positions: str = "learned"
    tied: str = "none"  # "output": target embedding and output share a table; "all": the source's too
    dropout: float = 0.2
    max_positions: int = 512  # the longest sequence it reads or writes

    CHOICES = {"positions": ("learned", "none"), "tied": ("all", "output", "none")}

    def problem(self) -> str | None:
        if self.kernel % 2 == 0:
            return f"kernel {self.kernel} has no middle: the encoder's windows need an odd one"
        return untieable(self)


CONVS2S_PRESETS: dict[str, dict] = {
    "tiny": dict(embedding_width=64, width=64, depth=2),
    "small": dict(embedding_width=256, width=256, depth=4),
    "iwslt": dict(embedding_width=256, width=256, depth=4, decoder_depth=3),  # the authors' recipe for little data
}


class ConvEncoderLayer(nn.Module):
    """The encoder's layer, x + GLU(windows of x), halved in variance. Gehring et al. 2017, section 3.2."""

    def __init__(self, width: int, kernel: int, dropout: float):
        super().__init__()
        self.windows, self.dropout = Convolution(width, 2 * width, kernel), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return (x + F.glu(self.windows(self.dropout(x)), -1)) * ROOT_HALF


class ConvDecoderLayer(nn.Module):
    """The decoder's: between the gate and the sum it looks at the source. Gehring et al. 2017, section 3.3."""

    def __init__(self, width: int, embedding: int, kernel: int, dropout: float):
        super().__init__()
        self.windows, self.dropout = Convolution(width, 2 * width, kernel), Dropout(dropout)
        self.ask = nn.Linear(width, embedding)
        same = nn.Identity()  # keys and values are the encoder's as they are, one memory for all layers
        self.attend = Attention(same, same, same, nn.Linear(embedding, width), score=dot)

    def forward(self, x: Tensor, past: Tensor, written: Tensor, source: Memory) -> tuple[Tensor, Tensor]:
        """`written` are the embeddings of x's own tokens: a query is what a layer found, and where it stands."""
        found, past = self.windows.after(past, self.dropout(x))
        found = F.glu(found, -1)
        with scope("cross"):
            seen = self.attend((self.ask(found) + written) * ROOT_HALF, source)
        return (x + (found + seen) * ROOT_HALF) * ROOT_HALF, past


class ConvS2S(AutoregressiveModel):
    """Without the paper's weight norm, and without its scaling of the encoder's gradients, which Adam mostly undoes."""

    def __init__(self, config: ConvS2SConfig):
        super().__init__()
        self.config = config
        self.source, self.target = both_sides(config, config.embedding_width, scaled=False)
        outer, inner = config.embedding_width, config.width
        self.encoder_in, self.encoder_out = nn.Linear(outer, inner), nn.Linear(inner, outer)
        self.decoder_in, self.decoder_out = nn.Linear(outer, inner), nn.Linear(inner, outer)
        shape = config.kernel, config.dropout
        self.encoder = nn.ModuleList(ConvEncoderLayer(config.width, *shape) for _ in range(config.depth))
        self.decoder = nn.ModuleList(
            ConvDecoderLayer(config.width, config.embedding_width, *shape)
            for _ in range(config.decoder_depth or config.depth)
        )
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.embedding_width, config.target_vocabulary)
        self.apply(self._initialise)
        if config.tied != "none":
            self.output.weight = self.target.table.weight

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    def encode(self, source: TokenBatch) -> Tensor:
        return self._read(source, self.source(source.tokens))

    def _read(self, source: TokenBatch, embedded: Tensor) -> Tensor:
        x = self.encoder_in(embedded)
        for layer in self.encoder:
            x = layer(x * source.real[:, :, None])  # zeros beyond the end, as at the beginning
        return self.encoder_out(x)

    def start(self, source: TokenBatch) -> State:
        """One memory for all layers: keys are what was found, values also say what stood there. Equation 2."""
        embedded = self.source(source.tokens)
        found = self._read(source, embedded)
        grown = source.lengths[:, None, None].sqrt().to(found.dtype)  # a mean of n would shrink by √n
        value = (found + embedded) * ROOT_HALF * grown
        memory = Memory(found[:, None], value[:, None], source.real)
        return State(memory, Windows.empty(self.decoder, found))

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        windows: Windows = state.hypothesis
        written = self.target(tokens, windows.time)
        x, later = self.decoder_in(written), []
        with scope("decoder"):
            for number, (layer, past) in enumerate(zip(self.decoder, windows.past, strict=True)):
                with scope(f"blocks.{number}"):
                    x, past = layer(x, past, written, state.source)
                later.append(past)
        return self.dropout(self.decoder_out(x)), State(state.source, Windows(tuple(later), windows.time + x.size(1)))

    def _initialise(self, module: nn.Module) -> None:
        """Variance is kept from layer to layer; a gate takes three quarters of it. Gehring et al. 2017, section 3.5."""
        if isinstance(module, nn.Linear):
            _keep_variance(module, 1.0)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
        elif isinstance(module, ConvEncoderLayer | ConvDecoderLayer):
            _keep_variance(module.windows.product, 4.0 * (1 - self.config.dropout))


def _keep_variance(linear: nn.Linear, gain: float) -> None:
    nn.init.normal_(linear.weight, std=math.sqrt(gain / linear.in_features))
    nn.init.zeros_(linear.bias)
