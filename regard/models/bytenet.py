"""ByteNet (Kalchbrenner et al. 2016): characters, dilated convolutions, and no attention.

The decoder is stacked on the encoder, position by position.

    source ─▶ embed ─▶ dilated blocks ─▶ states, stretched
                                           │ position t
    target ─▶ embed ───────────────────▶ join ─▶ dilated blocks, masked ─▶ logits

Decoder convolutions are causal. Between two steps each layer caches its last positions, so decoding is linear in the
output length.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.convolution import Convolution, ConvState
from regard.layers.dropout import Dropout
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import State


@dataclass(frozen=True)
class ByteNetConfig:
    source_vocabulary: int
    target_vocabulary: int
    width: int = 256  # of the states between blocks; inside a block it is halved
    sets: int = 2  # of blocks, in encoder and decoder each
    dilations: int = 5  # blocks in a set; the dilation doubles from block to block
    kernel: int = 3
    stretch: float = 1.2  # the largest ratio of output length to source length that is conditioned on the source
    dropout: float = 0.1
    max_positions: int = 1024  # the longest source or target

    CHOICES = {}

    def problem(self) -> str | None:
        if self.kernel % 2 == 0:
            return f"kernel {self.kernel} should be odd: the encoder's windows are centred"
        if self.width % 2:
            return f"width {self.width} should be even: inside the blocks it is halved"
        if self.stretch < 1:
            return f"stretch {self.stretch} would ignore the end of the source: it should be at least 1"
        if self.dilations > 16:
            return f"dilations {self.dilations}: windows would span 2^{self.dilations} positions; at most 16 dilations"
        return None


BYTENET_PRESETS: dict[str, dict] = {
    "tiny": dict(width=64, sets=1, dilations=4),
    "small": dict(width=256, sets=2),
    "wmt": dict(width=1600, sets=6),  # the paper's: d = 800, six sets of five
}


class DilatedBlock(nn.Module):
    """1×1, dilated and 1×1 convolution, each after norm and ReLU. Kalchbrenner et al. 2016, figure 3, left."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float):
        super().__init__()
        inner = width // 2
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (width, inner, inner))
        self.down = nn.Linear(width, inner)
        self.up = nn.Linear(inner, width)
        self.convolution = Convolution(inner, inner, kernel, dilation)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return self._up(x, self.convolution(self._down(x) * real))

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        convolved, past = self.convolution.after(past, self._down(x))
        return self._up(x, convolved), past

    def _down(self, x: Tensor) -> Tensor:
        return self.norms[1](self.down(self.norms[0](x).relu())).relu()

    def _up(self, x: Tensor, convolved: Tensor) -> Tensor:
        return x + self.dropout(self.up(self.norms[2](convolved).relu()))


class ByteNet(AutoregressiveModel):
    def __init__(self, config: ByteNetConfig):
        super().__init__()
        self.config = config
        self.source = nn.Embedding(config.source_vocabulary, config.width)
        self.target = nn.Embedding(config.target_vocabulary, config.width)
        self.encoder = self._blocks(config)
        self.decoder = self._blocks(config)
        self.join = nn.Linear(2 * config.width, config.width)
        width = config.width
        self.final = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.output = nn.Linear(config.width, config.target_vocabulary)

    @staticmethod
    def _blocks(config: ByteNetConfig) -> nn.ModuleList:
        rates = [2**power for _ in range(config.sets) for power in range(config.dilations)]
        return nn.ModuleList(DilatedBlock(config.width, config.kernel, rate, config.dropout) for rate in rates)

    def encode(self, source: TokenBatch) -> Tensor:
        return self._encode(source)[:, : source.tokens.size(1)]

    def _encode(self, source: TokenBatch) -> Tensor:
        """States for `stretch` times the source length: dynamic unfolding, section 3.2."""
        lengths = (source.lengths * self.config.stretch).round().long()
        x = self.source(source.tokens) * source.real[:, :, None]
        x = F.pad(x, (0, 0, 0, int(lengths.max()) - x.size(1)))
        real = (torch.arange(x.size(1), device=x.device) < lengths[:, None])[:, :, None]
        for block in self.encoder:
            x = block(x, real)
        return x * real

    def start(self, source: TokenBatch) -> State:
        states = self._encode(source)
        return State(states, ConvState.empty(self.decoder, states))

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        cache: ConvState = state.hypothesis
        encoded = state.source[:, cache.time : cache.time + tokens.size(1)]
        encoded = F.pad(encoded, (0, 0, 0, tokens.size(1) - encoded.size(1)))  # zeros beyond the encoder's states
        encoded = encoded.repeat_interleave(tokens.size(0) // encoded.size(0), 0)
        x = self.join(torch.cat([self.target(tokens), encoded], -1))
        later = []
        for block, past in zip(self.decoder, cache.past, strict=True):
            x, past = cast(DilatedBlock, block).step(x, past)
            later.append(past)
        return self.final(x), State(state.source, ConvState(tuple(later), cache.time + tokens.size(1)))
