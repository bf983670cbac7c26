"""GPT: a decoder-only Transformer, a causal language model.

    tokens ─▶ embed + positions ─▶ [ causal self-attention ─▶ feed-forward ] × depth ─▶ logits of the next token

GPT-1 (Radford et al. 2018) has its norms after each sum, GPT-2 (Radford et al. 2019) before each sublayer and one at
the end. GPT-3 (Brown et al. 2020) is GPT-2 with a sliding window in every other block, as in GPT-Neo.
"""

import math
from dataclasses import dataclass

from torch import nn

from regard.attention.core import Attention
from regard.attention.masks import Rule, Window, causal
from regard.attention.positions import Learned
from regard.attention.scores import PRODUCTS, Product
from regard.attention.variants import multihead
from regard.layers.autoregressive import TransformerLM
from regard.layers.blocks import ACTIVATIONS, Block, FeedForward, PostNorm, PreNorm, Stack, init_weights
from regard.layers.embedding import Embedding


@dataclass(frozen=True)
class GPTConfig:
    vocabulary: int
    width: int = 768
    heads: int = 12
    depth: int = 12
    feedforward: int = 0  # 0: four times the width
    norm: str = "pre"  # "post": GPT-1's
    attention_pattern: str = "g"  # a letter a block, repeated: global, or local (the last `window` positions)
    window: int = 256
    score: str = "scaled_dot"
    scale_by_layer: bool = False  # scores are divided by the index of the block, from 1
    activation: str = "gelu_tanh"
    bias: bool = True
    projection_bias: bool = True  # of queries, keys and values
    tied: bool = True  # embedding and output share a table
    epsilon: float = 1e-5
    dropout: float = 0.1
    max_positions: int = 1024  # the context window

    CHOICES = {"norm": ("pre", "post"), "score": tuple(PRODUCTS), "activation": tuple(ACTIVATIONS)}

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}"
        if not self.attention_pattern or set(self.attention_pattern) - set("gl"):
            return (
                f"attention_pattern '{self.attention_pattern}' should be letters g (global) and l (local), such as 'gl'"
            )
        return None


def _gpt3(width: int, depth: int, heads: int) -> dict:
    return dict(width=width, depth=depth, heads=heads, attention_pattern="gl", max_positions=2048)


PRESETS: dict[str, dict] = {
    "tiny": dict(width=128, heads=4, depth=4, max_positions=256),
    "small": dict(width=384, heads=6, depth=6, max_positions=256),
    "gpt1": dict(norm="post", max_positions=512),  # 116.5M with 40,478 tokens
    "gpt2": dict(),  # 124.4M with 50,257 tokens, as all below
    "gpt2-medium": dict(width=1024, heads=16, depth=24),  # 354.8M
    "gpt2-large": dict(width=1280, heads=20, depth=36),  # 774.0M
    "gpt2-xl": dict(width=1600, heads=25, depth=48),  # 1,557.6M
    "gpt3-small": _gpt3(768, 12, 12),  # 125M; these are the printed sizes of Brown et al. 2020, table 2.1
    "gpt3-medium": _gpt3(1024, 24, 16),  # 350M
    "gpt3-large": _gpt3(1536, 24, 16),  # 760M
    "gpt3-xl": _gpt3(2048, 24, 16),  # 1.3B; the table has 24 heads of 128, which is not its width
    "gpt3-2.7b": _gpt3(2560, 32, 32),  # 2.7B
    "gpt3-6.7b": _gpt3(4096, 32, 32),  # 6.7B
    "gpt3-13b": _gpt3(5120, 40, 40),  # 13.0B; the table's width of 5,140 is not its 40 heads of 128
    "gpt3-175b": _gpt3(12288, 96, 96),  # 175.0B
}


class GPT(TransformerLM):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.rotary = None
        self.embed, self.decoder, self.output = decoder(config)


def decoder(config: GPTConfig, cross: bool = False) -> tuple[Embedding, Stack, nn.Linear]:
    """Embedding, blocks and output layer; with `cross` the blocks also attend to a source."""
    table = nn.Embedding(config.vocabulary, config.width)
    embed = Embedding(table, Learned(config.width, config.max_positions), False, config.dropout)
    blocks = [_block(config, index, cross) for index in range(config.depth)]
    stack = Stack(blocks, _norm(config) if config.norm == "pre" else nn.Identity())
    output = nn.Linear(config.width, config.vocabulary, bias=False)
    for module in (embed, stack, output):
        module.apply(init_weights)
    for name, parameter in stack.named_parameters():
        if name.endswith((".output.weight", "down.weight")):  # 2 · depth residual layers are summed
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.depth))
    if config.tied:
        output.weight = table.weight
    return embed, stack, output


def _block(config: GPTConfig, index: int, cross: bool) -> Block:
    residual = PreNorm if config.norm == "pre" else PostNorm
    hidden = config.feedforward or 4 * config.width
    feedforward = FeedForward(config.width, hidden, config.activation, config.bias)
    letter = config.attention_pattern[index % len(config.attention_pattern)]
    rule: Rule = causal if letter == "g" else causal & Window(config.window)
    return Block(
        lambda: residual(_norm(config), config.dropout),
        _attention(config, index),
        feedforward,
        _attention(config, index) if cross else None,
        rule,
    )


def _attention(config: GPTConfig, index: int) -> Attention:
    attention = multihead(config.width, config.heads, score=_score(config, index), bias=config.bias)
    if not config.projection_bias:
        for projection in (attention.query, attention.key, attention.value):
            projection.register_parameter("bias", None)
    return attention


def _norm(config: GPTConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, config.epsilon, bias=config.bias)


def _score(config: GPTConfig, index: int) -> Product:
    score = PRODUCTS[config.score]
    return Product(lambda width: score.scale(width) / (index + 1)) if config.scale_by_layer else score
