"""DeBERTa: an encoder with disentangled attention to contents and relative positions. He et al. 2021.

    tokens (+ positions, segments) ─▶ norm ─▶ [ disentangled attention ─▶ feed-forward ] × depth ─▶ states
                          distances, shared by all blocks ───┘

The versions differ in fields of one config:

    v1      a vector for each distance, with projections of its own; keys have no bias            He et al. 2021
    v2      log buckets of distances, normalised, projected as contents are; a convolution        its second version,
            parallel to the first block in the largest two                                        2021
    v3      v2 without the convolution, trained by replaced token detection                       He et al. 2023
"""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.disentangled import Disentangled, Distances, Shared
from regard.attention.positions import Learned, Rotation
from regard.attention.variants import disentangled
from regard.layers.blocks import ACTIVATIONS, Block, FeedForward, PostNorm, Stack, init_weights
from regard.layers.dropout import Dropout
from regard.layers.encoder import InputEmbedding, TextEncoder


@dataclass(frozen=True)
class DebertaConfig:
    vocabulary: int
    width: int = 768
    heads: int = 12
    depth: int = 12
    feedforward: int = 0  # 0: four times the width
    embedding_width: int = 0  # of the embedding table, projected to `width`; 0: as `width`
    token_types: int = 0  # segment embeddings; 0: none
    absolute: bool = False  # absolute positions are added to the embeddings
    c2p: bool = True  # the content-to-position term
    p2c: bool = True  # the position-to-content term
    max_relative_positions: int = 0  # larger distances are clipped; 0: max_positions
    position_buckets: int = 0  # log buckets: half of them are exact distances; 0: a vector for each distance
    share_att_key: bool = True  # distances are projected by the weights of contents
    norm_rel_embeddings: bool = True  # distances are normalised first
    key_bias: bool = True
    kernel: int = 0  # size of the convolution parallel to the first block; 0: none
    kernel_groups: int = 1
    kernel_activation: str = "tanh"
    activation: str = "gelu"
    pooler_activation: str = "gelu"
    tied: bool = True  # embedding and output share a table
    epsilon: float = 1e-7
    dropout: float = 0.1
    max_positions: int = 512  # the longest text

    CHOICES = dict.fromkeys(("activation", "pooler_activation", "kernel_activation"), tuple(ACTIVATIONS))
    output_activation = ""  # of the layer before the output: as in the blocks

    @property
    def relative(self) -> bool:
        """Whether relative positions are used."""
        return self.c2p or self.p2c

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
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
            return f"kernel {self.kernel} should be odd: its windows are centred"
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


class Deberta(TextEncoder):
    pooler = None  # classifiers bring their own

    def __init__(self, config: DebertaConfig):
        super().__init__()
        self.config = config
        embedding_width = config.embedding_width or config.width
        norm = nn.LayerNorm(config.width, config.epsilon)
        self.embed = InputEmbedding(
            nn.Embedding(config.vocabulary, embedding_width),
            Learned(embedding_width, config.max_positions) if config.absolute else None,
            nn.Embedding(config.token_types, embedding_width) if config.token_types else None,
            nn.Sequential(nn.Linear(embedding_width, config.width, bias=False), norm)
            if config.embedding_width
            else norm,
            config.dropout,
        )
        self.embedding_projection = nn.Identity()  # embeddings are projected before their norm
        self.distances = None
        if config.relative:
            norm = nn.LayerNorm(config.width, config.epsilon) if config.norm_rel_embeddings else nn.Identity()
            reach = config.max_relative_positions or config.max_positions
            self.distances = Distances(config.width, reach, config.position_buckets, norm, Dropout(config.dropout))
        blocks = [_block(config, self.distances, index) for index in range(config.depth)]
        self.encoder = Stack(blocks, nn.Identity())
        self.apply(init_weights)


def _block(config: DebertaConfig, distances: Distances | None, index: int) -> Block:
    layers = (
        lambda: PostNorm(nn.LayerNorm(config.width, config.epsilon), config.dropout),
        disentangled(config.width, config.heads, _position_bias(config, distances), config.key_bias),
        FeedForward(config.width, config.feedforward or 4 * config.width, config.activation),
    )
    return Block(*layers) if index or not config.kernel else ConvolvedBlock(config, *layers)


def _position_bias(config: DebertaConfig, distances: Distances | None) -> Disentangled | None:
    if distances is None:
        return None
    if config.share_att_key:
        return Shared(distances, config.c2p, config.p2c)
    width = config.width
    key = nn.Linear(width, width, bias=config.key_bias) if config.c2p else None
    return Disentangled(distances, key, nn.Linear(width, width) if config.p2c else None)


class ConvolvedBlock(Block):
    """A block and, in parallel, a convolution over its input (DeBERTa v2's ConvLayer)."""

    def __init__(self, config: DebertaConfig, *layers):
        super().__init__(*layers)
        self.convolution = nn.Conv1d(
            config.width, config.width, config.kernel, padding=config.kernel // 2, groups=config.kernel_groups
        )
        self.activation = ACTIVATIONS[config.kernel_activation]
        self.dropout = Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width, config.epsilon)

    def forward(
        self, x: Tensor, real: Tensor | None, past: Memory | None, source: Memory | None, rotation: Rotation | None
    ) -> tuple[Tensor, Memory]:
        """The convolution sees zeros for padding, as beyond both ends."""
        y, memory = super().forward(x, real, past, source, rotation)
        unpadded = x if real is None else x.masked_fill(~real[..., None], 0.0)
        convolved = self.convolution(unpadded.mT).mT
        return self.norm(y + self.activation(self.dropout(convolved))), memory
