"""Llama: a decoder-only Transformer. Touvron et al. 2023.

    tokens ─▶ embed ─▶ [ causal self-attention with RoPE ─▶ SwiGLU ] × depth ─▶ norm ─▶ logits of the next token

GPT-2's blocks with RMSNorm for LayerNorm (Zhang & Sennrich 2019), rotary positions for learned ones (Su et al. 2021),
grouped-query attention (Ainslie et al. 2023), a gated feed-forward network (Shazeer 2020), and no biases.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from regard.attention.masks import causal
from regard.attention.positions import Rotary
from regard.attention.variants import grouped
from regard.layers.autoregressive import TransformerLM
from regard.layers.blocks import ACTIVATIONS, Block, GatedFeedForward, PreNorm, Stack, init_weights
from regard.layers.embedding import Embedding


@dataclass(frozen=True)
class LlamaConfig:
    vocabulary: int
    width: int = 512
    heads: int = 8
    key_heads: int = 0  # 0: as many as heads
    head_width: int = 0  # 0: width / heads
    depth: int = 8
    feedforward: int = 0  # 0: 8/3 of the width, in multiples of 32
    activation: str = "swish"
    rope_theta: float = 10000.0  # the base of the rotary frequencies
    rope_scaling: str = "none"  # "linear" or "llama3": a context longer than `original_max_positions` by `rope_factor`
    rope_factor: float = 1.0
    original_max_positions: int = 8192
    low_freq_factor: float = 1.0  # llama3: frequencies of fewer turns in `original_max_positions` are scaled fully,
    high_freq_factor: float = 4.0  # those of more turns than this not at all
    bias: bool = False  # of the attention's projections
    feedforward_bias: bool = False
    tied: bool = False  # embedding and output share a table
    epsilon: float = 1e-5
    dropout: float = 0.0
    max_positions: int = 2048  # the context window

    CHOICES = {"activation": tuple(ACTIVATIONS), "rope_scaling": ("none", "linear", "llama3")}

    @property
    def hidden(self) -> int:
        return self.feedforward or 32 * math.ceil(self.width / 12)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if not self.head_width and self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}: set head_width"
        if self.heads % (self.key_heads or self.heads):
            return f"heads {self.heads} is not a multiple of key_heads {self.key_heads}"
        if (self.head_width or self.width // self.heads) % 2:
            return f"head_width {self.head_width or self.width // self.heads} should be even: RoPE rotates pairs"
        if self.rope_scaling != "none" and self.rope_factor < 1:
            return f"rope_factor {self.rope_factor} should be at least 1"
        if self.rope_scaling == "llama3" and not self.low_freq_factor < self.high_freq_factor:
            return f"low_freq_factor {self.low_freq_factor} should be below high_freq_factor {self.high_freq_factor}"
        return None if self.rope_theta > 0 else f"rope_theta {self.rope_theta} should be above 0"


PRESETS: dict[str, dict] = {
    "stories260k": dict(width=64, heads=8, key_heads=4, depth=5, feedforward=172, tied=True, max_positions=512),
    "stories15m": dict(width=288, heads=6, depth=6, feedforward=768, tied=True, max_positions=256),  # 15.2M, 32,000
    "tiny": dict(width=128, heads=4, depth=4, max_positions=256),
    "small": dict(width=384, heads=6, depth=6, max_positions=512),
    "tinyllama-1.1b": dict(width=2048, heads=32, key_heads=4, depth=22, feedforward=5632),  # 1.10B, 32,000 tokens
    "llama-7b": dict(width=4096, heads=32, depth=32, feedforward=11008, epsilon=1e-6),  # 6.74B, 32,000 tokens
    "llama2-70b": dict(width=8192, heads=64, key_heads=8, depth=80, feedforward=28672, max_positions=4096),  # 69.0B
    "llama3-8b": dict(
        width=4096, heads=32, key_heads=8, depth=32, feedforward=14336, rope_theta=500000.0, max_positions=8192
    ),  # 8.03B, 128,256 tokens
    "llama3.2-1b": dict(
        width=2048, heads=32, key_heads=8, depth=16, feedforward=8192, rope_theta=500000.0, tied=True,
        rope_scaling="llama3", rope_factor=32.0, max_positions=131072,
    ),  # 1.24B, 128,256 tokens
}  # fmt: skip


class Llama(TransformerLM):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        head_width = config.head_width or config.width // config.heads
        self.rotary = Rotary(head_width, config.rope_theta, partial(_scale_frequencies, config=config))
        self.embed = Embedding(nn.Embedding(config.vocabulary, config.width), None, False, config.dropout)
        shape = config.width, config.heads, config.key_heads or config.heads, head_width
        blocks = [
            Block(
                lambda: PreNorm(_norm(config), config.dropout),
                grouped(*shape, bias=config.bias),
                GatedFeedForward(config.width, config.hidden, config.activation, config.feedforward_bias),
                rule=causal,
            )
            for _ in range(config.depth)
        ]
        self.decoder = Stack(blocks, _norm(config))
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        # Outputs have unit variance: attention heads of small networks specialise much earlier than with 0.02.
        self.apply(partial(init_weights, std=config.width**-0.5))
        if config.tied:
            self.output.weight = self.embed.table.weight


def _norm(config: LlamaConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.width, config.epsilon)


def _scale_frequencies(frequencies: Tensor, config: LlamaConfig) -> Tensor:
    """Lower frequencies, so that a longer context has the angles known from training.

    "linear" scales all (position interpolation, Chen et al. 2023); "llama3" only the low ones, with a smooth transition
    (Llama 3.1's configuration).
    """
    if config.rope_scaling == "none":
        return frequencies
    if config.rope_scaling == "linear":
        return frequencies / config.rope_factor
    turns = config.original_max_positions * frequencies / (2 * math.pi)
    kept = ((turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)).clamp(0, 1)
    return torch.lerp(frequencies / config.rope_factor, frequencies, kept)
