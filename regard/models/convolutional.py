"""Convolutional sequence to sequence: what came between the recurrent models and the Transformer.

ConvS2S (Gehring et al. 2017): gated windows on both sides, and every layer of the decoder looks at the source.

    source ─▶ embed + positions ─▶ [conv ─▶ GLU ─▶ + ] × depth ─▶ memory
                                                                    │ cross, in each
    target ─▶ embed + positions ─▶ [conv ─▶ GLU ─▶ attend ─▶ + ] × depth ─▶ logits

ByteNet (Kalchbrenner et al. 2016): characters, windows that widen twofold from layer to layer, and no attention: the
decoder stands on the encoder, place upon place.

    source ─▶ embed ─▶ dilated blocks ─▶ states, stretched
                                           │ place t
    target ─▶ embed ───────────────────▶ join ─▶ dilated blocks, masked ─▶ logits

A decoder's windows end with the place being written. Between two steps each keeps the few places that the next will
see, so writing is linear in the output.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.scores import dot
from regard.attention.trace import place
from regard.inputs.batch import Sequences
from regard.layers.convolution import Convolution, Windows
from regard.layers.dropout import Dropout
from regard.layers.embedding import both_sides, untieable
from regard.layers.generator import Generator
from regard.layers.state import State

ROOT_HALF = math.sqrt(0.5)  # a sum of two parts keeps the variance of one
EVEN = "kernel {} has no middle: the encoder's windows need an odd one"


@dataclass(frozen=True)
class ConvS2SConfig:
    source_vocabulary: int
    target_vocabulary: int
    embedding: int = 256
    width: int = 256  # of what the convolutions pass on
    depth: int = 4
    decoder_depth: int = 0  # 0: as the encoder's
    kernel: int = 3
    positions: str = "learned"
    tied: str = "none"  # "output": target embedding and output share a table; "all": the source's too
    dropout: float = 0.2
    limit: int = 512  # the longest sequence it reads or writes

    CHOICES = {"positions": ("learned", "none"), "tied": ("all", "output", "none")}

    def problem(self) -> str | None:
        if self.kernel % 2 == 0:
            return EVEN.format(self.kernel)
        return untieable(self)


CONVS2S_PRESETS: dict[str, dict] = {
    "tiny": dict(embedding=64, width=64, depth=2),
    "small": dict(embedding=256, width=256, depth=4),
    "iwslt": dict(embedding=256, width=256, depth=4, decoder_depth=3),  # of the authors' own recipe for little data
}


class Gated(nn.Module):
    """The encoder's layer, x + GLU(windows of x), halved in variance. Gehring et al. 2017, section 3.2."""

    def __init__(self, width: int, kernel: int, dropout: float):
        super().__init__()
        self.windows, self.dropout = Convolution(width, 2 * width, kernel), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return (x + F.glu(self.windows(self.dropout(x)), -1)) * ROOT_HALF


class Looking(nn.Module):
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
        with place("cross"):
            seen = self.attend((self.ask(found) + written) * ROOT_HALF, source)
        return (x + (found + seen) * ROOT_HALF) * ROOT_HALF, past


class ConvS2S(Generator):
    """Without the paper's weight norm, and without its scaling of the encoder's gradients, which Adam mostly undoes."""

    def __init__(self, config: ConvS2SConfig):
        super().__init__()
        self.config = config
        self.source, self.target = both_sides(config, config.embedding, scaled=False)
        outer, inner = config.embedding, config.width
        self.encoder_in, self.encoder_out = nn.Linear(outer, inner), nn.Linear(inner, outer)
        self.decoder_in, self.decoder_out = nn.Linear(outer, inner), nn.Linear(inner, outer)
        shape = config.kernel, config.dropout
        self.encoder = nn.ModuleList(Gated(config.width, *shape) for _ in range(config.depth))
        self.decoder = nn.ModuleList(
            Looking(config.width, config.embedding, *shape) for _ in range(config.decoder_depth or config.depth)
        )
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.embedding, config.target_vocabulary)
        self.apply(self._initialise)
        if config.tied != "none":
            self.output.weight = self.target.table.weight

    @property
    def limit(self) -> int:
        return self.config.limit

    def encode(self, source: Sequences) -> Tensor:
        return self._read(source, self.source(source.tokens))

    def _read(self, source: Sequences, embedded: Tensor) -> Tensor:
        x = self.encoder_in(embedded)
        for layer in self.encoder:
            x = layer(x * source.real[:, :, None])  # zeros beyond the end, as at the beginning
        return self.encoder_out(x)

    def start(self, source: Sequences) -> State:
        """One memory for all layers: keys are what was found, values also say what stood there. Equation 2."""
        embedded = self.source(source.tokens)
        found = self._read(source, embedded)
        grown = source.lengths[:, None, None].sqrt().to(found.dtype)  # a mean of n would shrink by √n
        value = (found + embedded) * ROOT_HALF * grown
        memory = Memory(found[:, None], value[:, None], source.real)
        return State(memory, Windows.of_nothing(self.decoder, found))

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        windows: Windows = state.hypothesis
        written = self.target(tokens, windows.time)
        x, later = self.decoder_in(written), []
        with place("decoder"):
            for number, (layer, past) in enumerate(zip(self.decoder, windows.past, strict=True)):
                with place(f"blocks.{number}"):
                    x, past = layer(x, past, written, state.source)
                later.append(past)
        return self.dropout(self.decoder_out(x)), State(state.source, Windows(tuple(later), windows.time + x.size(1)))

    def _initialise(self, module: nn.Module) -> None:
        """Variance is kept from layer to layer; a gate takes three quarters of it. Gehring et al. 2017, section 3.5."""
        if isinstance(module, nn.Linear):
            _keep_variance(module, 1.0)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
        elif isinstance(module, Gated | Looking):
            _keep_variance(module.windows.product, 4.0 * (1 - self.config.dropout))


def _keep_variance(linear: nn.Linear, gain: float) -> None:
    nn.init.normal_(linear.weight, std=math.sqrt(gain / linear.in_features))
    nn.init.zeros_(linear.bias)


@dataclass(frozen=True)
class ByteNetConfig:
    source_vocabulary: int
    target_vocabulary: int
    width: int = 256  # of what the blocks pass on; inside they are half as wide
    sets: int = 2  # of blocks, on each side
    dilations: int = 5  # blocks of a set: each sees twice as far as the one before
    kernel: int = 3
    stretch: float = 1.2  # an output may be that much longer than its source and still stand on it
    dropout: float = 0.1
    limit: int = 1024  # the longest sequence it reads or writes

    CHOICES = {}

    def problem(self) -> str | None:
        if self.kernel % 2 == 0:
            return EVEN.format(self.kernel)
        if self.width % 2:
            return f"width {self.width} should be even: inside the blocks it is halved"
        if self.stretch < 1:
            return f"stretch {self.stretch} would leave a part of the source unread: it should be at least 1"
        if self.dilations > 16:
            return f"dilations {self.dilations}: the last block would see {2**self.dilations} places"
        return None


BYTENET_PRESETS: dict[str, dict] = {
    "tiny": dict(width=64, sets=1, dilations=4),
    "small": dict(width=256, sets=2),
    "wmt": dict(width=1600, sets=6),  # the paper's: d = 800, six sets of five
}


class Dilated(nn.Module):
    """Narrow, look around, widen; each after a norm and a bend. Kalchbrenner et al. 2016, figure 3, left."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float):
        super().__init__()
        inner = width // 2
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (width, inner, inner))
        self.narrow, self.widen = nn.Linear(width, inner), nn.Linear(inner, width)
        self.windows, self.dropout = Convolution(inner, inner, kernel, dilation), Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return self._leave(x, self.windows(self._enter(x) * real))

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        found, past = self.windows.after(past, self._enter(x))
        return self._leave(x, found), past

    def _enter(self, x: Tensor) -> Tensor:
        return self.norms[1](self.narrow(self.norms[0](x).relu())).relu()

    def _leave(self, x: Tensor, found: Tensor) -> Tensor:
        return x + self.dropout(self.widen(self.norms[2](found).relu()))


class ByteNet(Generator):
    def __init__(self, config: ByteNetConfig):
        super().__init__()
        self.config = config
        self.source = nn.Embedding(config.source_vocabulary, config.width)
        self.target = nn.Embedding(config.target_vocabulary, config.width)
        self.encoder, self.decoder = (self._blocks(config) for _ in range(2))
        self.join = nn.Linear(2 * config.width, config.width)
        self.final = nn.Sequential(
            nn.LayerNorm(config.width), nn.ReLU(), nn.Linear(config.width, config.width), nn.ReLU()
        )
        self.output = nn.Linear(config.width, config.target_vocabulary)

    @staticmethod
    def _blocks(config: ByteNetConfig) -> nn.ModuleList:
        rates = [2**power for _ in range(config.sets) for power in range(config.dilations)]
        return nn.ModuleList(Dilated(config.width, config.kernel, rate, config.dropout) for rate in rates)

    @property
    def limit(self) -> int:
        return self.config.limit

    def encode(self, source: Sequences) -> Tensor:
        return self._read(source)[:, : source.tokens.size(1)]

    def _read(self, source: Sequences) -> Tensor:
        """States for `stretch` times as many places as were read: dynamic unfolding, section 3.2."""
        ends = (source.lengths * self.config.stretch).round().long()
        x = self.source(source.tokens) * source.real[:, :, None]
        x = F.pad(x, (0, 0, 0, int(ends.max()) - x.size(1)))
        real = (torch.arange(x.size(1), device=x.device) < ends[:, None])[:, :, None]
        for block in self.encoder:
            x = block(x, real)
        return x * real

    def start(self, source: Sequences) -> State:
        states = self._read(source)
        return State(states, Windows.of_nothing(self.decoder, states))

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        windows: Windows = state.hypothesis
        under = state.source[:, windows.time : windows.time + tokens.size(1)]
        under = F.pad(under, (0, 0, 0, tokens.size(1) - under.size(1)))  # beyond what was read it stands on zeros
        under = under.repeat_interleave(tokens.size(0) // under.size(0), 0)
        x, later = self.join(torch.cat([self.target(tokens), under], -1)), []
        for block, past in zip(self.decoder, windows.past, strict=True):
            x, past = cast(Dilated, block).step(x, past)
            later.append(past)
        return self.final(x), State(state.source, Windows(tuple(later), windows.time + tokens.size(1)))
