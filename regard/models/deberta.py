"""DeBERTa: an encoder that compares contents with contents, and with how far apart they stand. He et al. 2021.

    tokens (+ places, segments) ─▶ widen ─▶ norm ─▶ [ look at all, near or far ─▶ think ] × depth ─▶ states
                                     distances, the same for all blocks ───┘

What the versions differ in are fields of one config:

    v1      a vector for each distance, projected apart from contents; keys have no bias          He et al. 2021
    v2      far distances in buckets, normed, projected as contents are; a convolution beside     its second version,
            the first block in the largest two                                                    2021
    v3      v2 without the convolution, trained to tell replaced words                            He et al. 2023
"""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.disentangled import Disentangled, Distances, Shared
from regard.attention.positions import Learned, Rotation
from regard.attention.variants import disentangled
from regard.layers.activations import ACTIVATIONS
from regard.layers.blocks import Block, FeedForward, PostNorm, Stack
from regard.layers.dropout import Dropout
from regard.layers.encoder import Encoder, InputEmbedding, initialise


@dataclass(frozen=True)
class DebertaConfig:
    vocabulary: int
    width: int = 768
    heads: int = 12
    depth: int = 12
    feedforward: int = 0  # 0: four times the width
    embedding_width: int = 0  # the width of the table, from which it is widened to that of the states; 0: the same
    token_types: int = 0  # texts in a row that are told apart; 0: none are
    absolute: bool = False  # places are added to the embeddings as well
    c2p: bool = True  # contents are compared with distances
    p2c: bool = True  # distances are compared with contents
    max_relative_positions: int = 0  # the distance from which on all are one; 0: max_positions
    position_buckets: int = 0  # of distances, half of them for one each and half for the far ones; 0: each has its own
    share_att_key: bool = True  # distances are projected as contents are
    norm_rel_embeddings: bool = True  # distances are normed first
    key_bias: bool = True
    kernel: int = 0  # places of the convolution beside the first block; 0: none
    kernel_groups: int = 1
    kernel_activation: str = "tanh"
    activation: str = "gelu"
    pooler_activation: str = "gelu"
    tied: bool = True  # embedding and output share a table
    epsilon: float = 1e-7
    dropout: float = 0.1
    max_positions: int = 512  # the longest text that is read

    CHOICES = dict.fromkeys(("activation", "pooler_activation", "kernel_activation"), tuple(ACTIVATIONS))
    output_activation = ""  # of the layer before the output: as in the blocks

    @property
    def relative(self) -> bool:
        """Whether distances tell places apart."""
        return self.c2p or self.p2c

    def problem(self) -> str | None:
        """What does not fit together, in words."""
        reach = self.max_relative_positions or self.max_positions
        if self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}"
        if not self.relative and (
            self.share_att_key or self.norm_rel_embeddings or self.position_buckets or self.max_relative_positions
        ):
            return "max_relative_positions, position_buckets, share_att_key and norm_rel_embeddings need c2p or p2c"
        if self.position_buckets and not 1 < self.position_buckets // 2 < reach - 1:
            return (
                f"position_buckets {self.position_buckets} should be at least 4 and less than twice "
                f"max_relative_positions {reach}"
            )
        if self.kernel and not self.kernel % 2:
            return f"kernel {self.kernel} should be odd: a place stands in its middle"
        if self.width % self.kernel_groups:
            return f"width {self.width} is not a multiple of kernel_groups {self.kernel_groups}"
        return None


def _first(width: int, depth: int, heads: int) -> dict:
    return dict(width=width, depth=depth, heads=heads, share_att_key=False, norm_rel_embeddings=False, key_bias=False)


def _second(width: int, depth: int, heads: int, kernel: int = 0) -> dict:
    convolution = dict(kernel=kernel, kernel_activation="gelu") if kernel else {}
    return dict(width=width, depth=depth, heads=heads, position_buckets=256, **convolution)


PRESETS: dict[str, dict] = {
    "base": _first(768, 12, 12),  # 138.6M with 50,265 tokens, as all up to xlarge
    "large": _first(1024, 24, 16),  # 405.2M
    "xlarge": _first(1024, 48, 16),  # 757.8M
    "v2-xlarge": _second(1536, 24, 24, kernel=3),  # 884.6M with 128,100 tokens, as all below
    "v2-xxlarge": _second(1536, 48, 24, kernel=3),  # 1,564.5M
    "v3-xsmall": _second(384, 12, 6),  # 70.7M
    "v3-small": _second(768, 6, 12),  # 141.3M
    "v3-base": _second(768, 12, 12),  # 183.8M
    "v3-large": _second(1024, 24, 16),  # 434.0M
}


class Deberta(Encoder):
    pooler = None  # what is asked of the whole text brings its own

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.config = config
        inside, norm = config.embedding_width or config.width, nn.LayerNorm(config.width, config.epsilon)
        self.embed = InputEmbedding(
            nn.Embedding(config.vocabulary, inside),
            Learned(inside, config.max_positions) if config.absolute else None,
            nn.Embedding(config.token_types, inside) if config.token_types else None,
            nn.Sequential(nn.Linear(inside, config.width, bias=False), norm) if config.embedding_width else norm,
            config.dropout,
        )
        self.embedding_projection = nn.Identity()  # embeddings are, before their norm
        self.distances = _distances(config) if config.relative else None
        blocks = [_block(config, self.distances, number) for number in range(config.depth)]
        self.encoder = Stack(blocks, nn.Identity())
        self.apply(initialise)


def _distances(config: DebertaConfig) -> Distances:
    norm = nn.LayerNorm(config.width, config.epsilon) if config.norm_rel_embeddings else nn.Identity()
    return Distances(
        config.width,
        config.max_relative_positions or config.max_positions,
        config.position_buckets,
        norm,
        Dropout(config.dropout),
    )


def _block(config: DebertaConfig, distances: Distances | None, number: int) -> Block:
    parts = (
        lambda: PostNorm(nn.LayerNorm(config.width, config.epsilon), config.dropout),
        disentangled(config.width, config.heads, _relation(config, distances), config.key_bias),
        FeedForward(config.width, config.feedforward or 4 * config.width, config.activation),
    )
    return Block(*parts) if number or not config.kernel else Convolved(config, *parts)


def _relation(config: DebertaConfig, distances: Distances | None) -> Disentangled | None:
    if distances is None:
        return None
    if config.share_att_key:
        return Shared(distances, config.c2p, config.p2c)
    width = config.width
    key = nn.Linear(width, width, bias=config.key_bias) if config.c2p else None
    return Disentangled(distances, key, nn.Linear(width, width) if config.p2c else None)


class Convolved(Block):
    """A block, and a convolution over what it was given beside it: the neighbours of each place."""

    def __init__(self, config: DebertaConfig, *parts):
        super().__init__(*parts)
        self.convolution = nn.Conv1d(
            config.width, config.width, config.kernel, padding=config.kernel // 2, groups=config.kernel_groups
        )
        self.activation, self.dropout = ACTIVATIONS[config.kernel_activation], Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width, config.epsilon)

    def forward(
        self, x: Tensor, real: Tensor | None, past: Memory | None, source: Memory | None, rotation: Rotation | None
    ) -> tuple[Tensor, Memory]:
        """Padding is zeros to its neighbours, as what lies beyond the ends."""
        y, memory = super().forward(x, real, past, source, rotation)
        given = x if real is None else x.masked_fill(~real[..., None], 0.0)
        beside = self.convolution(given.mT).mT
        return self.norm(y + self.activation(self.dropout(beside))), memory
