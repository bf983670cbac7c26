"""BERT: a bidirectional Transformer encoder. Devlin et al. 2019.

    tokens + positions + segments ─▶ norm ─▶ [ self-attention ─▶ feed-forward ] × depth ─▶ states ─▶ pooler

Related models are fields of one config:

    RoBERTa, CamemBERT   positions start after the row of the padding (`position_offset`),     Liu et al. 2019
                         one token type
    DistilBERT           no token types, no pooler; half the blocks                            Sanh et al. 2019
    ALBERT               factorised embeddings (`embedding_width`), shared blocks               Lan et al. 2020
                         (`hidden_groups` of `inner_group_size` blocks)
"""

from dataclasses import dataclass

from torch import nn

from regard.attention.masks import causal
from regard.attention.positions import Learned
from regard.attention.variants import multihead
from regard.layers.blocks import ACTIVATIONS, Block, FeedForward, PostNorm, Stack, init_weights
from regard.layers.encoder import InputEmbedding, Pooler, TextEncoder
from regard.models.heads.mlm import MLMHead


@dataclass(frozen=True)
class BertConfig:
    vocabulary: int
    width: int = 768
    heads: int = 12
    depth: int = 12
    feedforward: int = 0  # 0: four times the width
    embedding_width: int = 0  # of the embedding table, projected to `width`; 0: as `width`
    token_types: int = 2  # segment embeddings; 0: none
    position_offset: int = 0  # the row of the first position; those before it are not used
    hidden_groups: int = 0  # groups of weights that the blocks share; 0: each has its own
    inner_group_size: int = 1  # blocks in a group
    pooler: bool = True
    activation: str = "gelu"
    pooler_activation: str = "tanh"
    output_activation: str = ""  # of the layer before the output; "": as in the blocks
    tied: bool = True  # embedding and output share a table
    epsilon: float = 1e-12
    dropout: float = 0.1
    max_positions: int = 512  # the longest text

    CHOICES = {"activation": tuple(ACTIVATIONS), "pooler_activation": tuple(ACTIVATIONS),
               "output_activation": ("", *ACTIVATIONS)}  # fmt: skip
    MAY_BE_ZERO = ("token_types",)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}"
        if self.hidden_groups and self.depth < self.hidden_groups:
            return f"depth {self.depth} is less than hidden_groups {self.hidden_groups}: some would never be used"
        if self.inner_group_size > 1 and not self.hidden_groups:
            return f"inner_group_size {self.inner_group_size} needs hidden_groups, but hidden_groups is 0"
        return None


def _bert(width: int, depth: int, heads: int, **fields: object) -> dict:
    return dict(width=width, depth=depth, heads=heads, **fields)


def _roberta(width: int, depth: int, heads: int) -> dict:
    return _bert(width, depth, heads, token_types=1, position_offset=2, epsilon=1e-5, output_activation="gelu")


def _albert(width: int, depth: int, heads: int, dropout: float = 0.0) -> dict:
    return _bert(width, depth, heads, embedding_width=128, hidden_groups=1, activation="gelu_tanh", dropout=dropout)


PRESETS: dict[str, dict] = {
    "tiny": _bert(128, 2, 2),  # 4.4M with 30,522 tokens, as all up to large
    "mini": _bert(256, 4, 4),  # 11.2M
    "small": _bert(512, 4, 8),  # 28.8M
    "medium": _bert(512, 8, 8),  # 41.4M
    "base": _bert(768, 12, 12),  # 109.5M
    "large": _bert(1024, 24, 16),  # 335.1M
    "roberta-base": _roberta(768, 12, 12),  # 124.6M with 50,265 tokens
    "roberta-large": _roberta(1024, 24, 16),  # 355.4M
    "distilbert-base": _bert(768, 6, 12, token_types=0, pooler=False, pooler_activation="relu"),  # 66.4M with 30,522
    "albert-base": _albert(768, 12, 12),  # 11.7M with 30,000 tokens, as all below: version 2
    "albert-large": _albert(1024, 24, 16),  # 17.7M
    "albert-xlarge": _albert(2048, 24, 16),  # 58.7M
    "albert-xxlarge": _albert(4096, 12, 64),  # 222.6M
}


class Bert(TextEncoder):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.embed = _embedding(config)
        width = config.embedding_width or config.width
        self.embedding_projection = nn.Linear(width, config.width) if config.embedding_width else nn.Identity()
        self.encoder = Stack(_blocks(config), nn.Identity())
        self.pooler = Pooler(config.width, config.pooler_activation) if config.pooler else None
        self.apply(init_weights)


def _embedding(config: BertConfig) -> InputEmbedding:
    width = config.embedding_width or config.width
    return InputEmbedding(
        nn.Embedding(config.vocabulary, width),
        Learned(width, config.position_offset + config.max_positions),
        nn.Embedding(config.token_types, width) if config.token_types else None,
        nn.LayerNorm(width, config.epsilon),
        config.dropout,
        config.position_offset,
    )


def decoder(config: BertConfig) -> tuple[InputEmbedding, Stack, MLMHead]:
    """Embedding, blocks and output layer of a causal decoder that attends to a source. Rothe et al. 2020."""
    embed = _embedding(config)
    stack = Stack([_block(config, decodes=True) for _ in range(config.depth)], nn.Identity())
    for module in (embed, stack):
        module.apply(init_weights)
    return embed, stack, MLMHead(config, embed.table)


def _blocks(config: BertConfig) -> list[Block]:
    """The blocks in order. A shared block occurs several times, each with a site of its own in a trace."""
    if not config.hidden_groups:
        return [_block(config) for _ in range(config.depth)]
    groups = [[_block(config) for _ in range(config.inner_group_size)] for _ in range(config.hidden_groups)]
    return [block for index in range(config.depth) for block in groups[group_of(config, index)]]


def group_of(config: BertConfig, index: int) -> int:
    """The group of weights that layer `index` uses. Lan et al. 2020, section 3.1."""
    return int(index / (config.depth / config.hidden_groups))


def _block(config: BertConfig, decodes: bool = False) -> Block:
    return Block(
        lambda: PostNorm(nn.LayerNorm(config.width, config.epsilon), config.dropout),
        multihead(config.width, config.heads),
        FeedForward(config.width, config.feedforward or 4 * config.width, config.activation),
        multihead(config.width, config.heads) if decodes else None,
        causal if decodes else None,
    )
