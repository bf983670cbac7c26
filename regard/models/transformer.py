"""The Transformer. Vaswani et al. 2017, figure 1.

source ─▶ embed + positions ─▶ encoder blocks ─▶ memory
                                                   │ cross
target ─▶ embed + positions ─▶ decoder blocks ◀────┘ ─▶ logits
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from regard.attention.masks import causal
from regard.attention.recording import scope
from regard.attention.scores import PRODUCTS
from regard.attention.variants import multihead
from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.blocks import ACTIVATIONS, RESIDUALS, Block, FeedForward, PostNorm, Stack
from regard.layers.embedding import POSITIONS, both_sides, untieable
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import State


@dataclass(frozen=True)
class TransformerConfig:
    source_vocabulary: int
    target_vocabulary: int
    width: int = 256
    heads: int = 8
    depth: int = 3
    feedforward: int = 1024  # 0: blocks without a feed-forward network
    decoder_heads: int = 0  # 0: as the encoder's
    decoder_depth: int = 0
    decoder_feedforward: int = 0
    norm: str = "post"  # or "pre"; ablations: "none" (x + f(x)) and "no_residual" (Norm(f(x)))
    score: str = "scaled_dot"  # "dot" leaves out 1/√d
    positions: str = "sinusoid"
    tied: str = "all"  # one table for source, target and output; "output" for the last two; "none"
    activation: str = "relu"
    scale_embedding: bool = True
    dropout: float = 0.1
    max_positions: int = 512  # the longest source or target

    CHOICES = {"norm": tuple(RESIDUALS), "score": tuple(PRODUCTS), "positions": tuple(POSITIONS),
               "tied": ("all", "output", "none"), "activation": tuple(ACTIVATIONS)}  # fmt: skip
    MAY_BE_ZERO = ("feedforward",)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        for side, heads in (("heads", self.heads), ("decoder_heads", self.decoder_heads or self.heads)):
            if self.width % heads:
                return f"width {self.width} is not a multiple of {side} {heads}"
        return untieable(self)


PRESETS: dict[str, dict] = {
    "tiny": dict(width=64, heads=4, depth=2, feedforward=256),
    "small": dict(width=256, heads=8, depth=3, feedforward=1024),
    "base": dict(width=512, heads=8, depth=6, feedforward=2048),  # 65M with 37,000 tokens: the paper's table 3
    "big": dict(width=1024, heads=16, depth=6, feedforward=4096, dropout=0.3),  # 213M
}


def stack(config: TransformerConfig, depth: int, heads: int, feedforward: int, cross: bool) -> Stack:
    """The blocks of the encoder, or with `cross` of the decoder: causal, with cross-attention."""

    def residual() -> PostNorm:
        return RESIDUALS[config.norm](nn.LayerNorm(config.width), config.dropout)

    attention = partial(multihead, config.width, heads, score=PRODUCTS[config.score])
    blocks = [
        Block(
            residual,
            attention(),
            FeedForward(config.width, feedforward, config.activation) if feedforward else None,
            attention() if cross else None,
            causal if cross else None,
        )
        for _ in range(depth)
    ]
    return Stack(blocks, nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity())


class Transformer(AutoregressiveModel):
    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.source, self.target = both_sides(config, config.width, config.scale_embedding)
        self.encoder = stack(config, config.depth, config.heads, config.feedforward, cross=False)
        self.decoder = stack(
            config,
            config.decoder_depth or config.depth,
            config.decoder_heads or config.heads,
            config.decoder_feedforward or config.feedforward,
            cross=True,
        )
        self.output = nn.Linear(config.width, config.target_vocabulary)
        self.apply(self._initialise)
        if config.tied != "none":
            self.output.weight = self.target.table.weight

    def encode(self, source: TokenBatch) -> Tensor:
        with scope("encoder"):
            return self.encoder(self.source(source.tokens), real=source.real)[0]

    def start(self, source: TokenBatch) -> State:
        return State(self.decoder.remember(self.encode(source), source.real), ())

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        past = state.hypothesis
        with scope("decoder"):
            x = self.target(tokens, past[0].end if past else 0)
            x, past = self.decoder(x, past=past, source=state.source)
        return x, State(state.source, past)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            std = self.config.width**-0.5 if self.config.scale_embedding else 0.02
            torch.nn.init.normal_(module.weight, std=std)
