"""Transformer blocks. One class serves encoders and decoders, self-attention and cross-attention.

Shapes: x (batch, length, width).
"""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.masks import Rule
from regard.attention.positions import Rotation
from regard.attention.recording import scope
from regard.layers.dropout import Dropout, DropPath

ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),  # Hendrycks & Gimpel 2016
    "gelu_tanh": nn.GELU("tanh"),  # as GPT-2 computes it
    "swish": nn.SiLU(),  # Ramachandran et al. 2017
    "tanh": nn.Tanh(),
}


class FeedForward(nn.Module):
    """down(activation(up(x))), at each position alone. Vaswani et al. 2017, equation 2."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = True):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)). Shazeer 2020, SwiGLU."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = False):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=bias)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class PostNorm(nn.Module):
    """Norm(x + sublayer(x)), as in the 2017 paper. A sublayer reads `before(x)`; `after(x, y)` adds its result y."""

    def __init__(self, norm: nn.Module, dropout: float):
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + self.dropout(y))


class PreNorm(PostNorm):
    """x + sublayer(Norm(x)): the residual path has no norm, so that deep stacks train without warm-up."""

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropout(y)


class StochasticDepth(PreNorm):
    """Pre-norm whose sublayer is dropped for some samples in training. Huang et al. 2016."""

    def __init__(self, norm: nn.Module, dropout: float, drop_path: float):
        super().__init__(norm, dropout)
        self.drop_path = DropPath(drop_path)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.drop_path(self.dropout(y))


def linear_rates(last: float, depth: int) -> list[float]:
    """Rates of stochastic depth, which rise linearly from 0 to that of the last block."""
    return [last * index / max(depth - 1, 1) for index in range(depth)]


class NoNorm(PostNorm):
    """x + sublayer(x), for ablations."""

    def __init__(self, norm: nn.Module, dropout: float):
        super().__init__(nn.Identity(), dropout)


class NoResidual(PostNorm):
    """Norm(sublayer(x)), for ablations."""

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.dropout(y))


RESIDUALS: dict[str, type[PostNorm]] = {"post": PostNorm, "pre": PreNorm, "none": NoNorm, "no_residual": NoResidual}


class Block(nn.Module):
    """Self-attention, cross-attention if there is a source, then the feed-forward network; each in its residual."""

    cross: Attention  # of decoders only, as is its residual
    cross_residual: PostNorm
    feedforward: nn.Module  # of all blocks but those of an ablation, as is its residual
    feedforward_residual: PostNorm

    def __init__(
        self,
        residual: Callable[[], PostNorm],
        self_attention: Attention,
        feedforward: nn.Module | None,
        cross: Attention | None = None,
        rule: Rule | None = None,
    ):
        """`rule` is the mask of the self-attention."""
        super().__init__()
        self.self_attention = self_attention
        self.self_attention_residual = residual()
        self.rule = rule
        if cross is not None:
            self.cross = cross
            self.cross_residual = residual()
        if feedforward is not None:
            self.feedforward = feedforward
            self.feedforward_residual = residual()
        self.has_feedforward = feedforward is not None

    def forward(
        self, x: Tensor, real: Tensor | None, past: Memory | None, source: Memory | None, rotation: Rotation | None
    ) -> tuple[Tensor, Memory]:
        """The new x, and the keys and values of all positions so far. `real` marks padding in x, `past` precedes it."""
        with scope("self"):
            query = self.self_attention_residual.before(x)
            y, memory = self.self_attention.self_attend(query, self.rule, real, past, rotation)
        x = self.self_attention_residual.after(x, y)
        if source is not None:
            with scope("cross"):
                x = self.cross_residual.after(x, self.cross(self.cross_residual.before(x), source))
        if self.has_feedforward:
            x = self.feedforward_residual.after(x, self.feedforward(self.feedforward_residual.before(x)))
        return x, memory


class Stack(nn.Module):
    """Blocks on top of each other, and a final norm (pre-norm stacks have one)."""

    def __init__(self, blocks: list[Block], final: nn.Module):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.final = final

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        """`past` and `source` have a memory for each block, or are empty."""
        memories = []
        for index, block in enumerate(self.blocks):
            with scope(f"blocks.{index}"):
                x, memory = block(x, real, past[index] if past else None, source[index] if source else None, rotation)
            memories.append(memory)
        return self.final(x), tuple(memories)

    def remember(self, source: Tensor, real: Tensor | None) -> tuple[Memory, ...]:
        """The keys and values of an encoded source for each block; computed once, for all steps and hypotheses."""
        blocks = cast(list[Block], list(self.blocks))
        return tuple(block.cross.remember(source, real) for block in blocks)


def init_weights(module: nn.Module, std: float = 0.02) -> None:
    """Matrices with this standard deviation (0.02: BERT's and GPT-2's), biases zero; for `nn.Module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
