"""Blocks: what a stack is made of. One class serves encoders and decoders, self and cross attention.

Shapes: x (batch, length, width).
"""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.masks import Rule
from regard.attention.positions import Rotation
from regard.attention.trace import scope
from regard.layers.activations import ACTIVATIONS
from regard.layers.dropout import Dropout


class FeedForward(nn.Module):
    """Each place for itself: widen, bend, narrow. Vaswani et al. 2017, equation 2."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = True):
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)
        self.bend = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.bend(self.widen(x)))


class GatedFeedForward(nn.Module):
    """A feed-forward network one half of which decides how much of the other passes. Shazeer 2020, SwiGLU."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = False):
        super().__init__()
        self.gate, self.widen = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
        self.narrow = nn.Linear(hidden, width, bias=bias)
        self.bend = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.bend(self.gate(x)) * self.widen(x))


class PostNorm(nn.Module):
    """Norm(x + sublayer(x)), as in the 2017 paper. A sublayer is given `before(x)`; `after(x, y)` takes its result."""

    def __init__(self, norm: nn.Module, dropout: float):
        super().__init__()
        self.norm, self.dropout = norm, Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + self.dropout(y))


class PreNorm(PostNorm):
    """x + sublayer(Norm(x)): the residual path stays free, so that deep stacks train without warm-up."""

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropout(y)


class NoNorm(PostNorm):
    """x + sublayer(x): what norms are for shows in what happens without."""

    def __init__(self, norm: nn.Module, dropout: float):
        super().__init__(nn.Identity(), dropout)


class NoResidual(PostNorm):
    """Norm(sublayer(x)): what came in is forgotten."""

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.dropout(y))


RESIDUALS: dict[str, type[PostNorm]] = {"post": PostNorm, "pre": PreNorm, "none": NoNorm, "no_residual": NoResidual}


class Block(nn.Module):
    """Look at oneself, look at the source if there is one, then think; each inside its residual."""

    cross: Attention  # a decoder's only, as is its residual
    cross_residual: PostNorm
    feedforward: nn.Module  # in all but a lesson's blocks, as is its residual
    feedforward_residual: PostNorm

    def __init__(
        self,
        residual: Callable[[], PostNorm],
        own: Attention,
        feedforward: nn.Module | None,
        cross: Attention | None = None,
        rule: Rule | None = None,
    ):
        """`rule` says which of its own places each may see."""
        super().__init__()
        self.own, self.self_attention_residual, self.rule = own, residual(), rule
        if cross is not None:
            self.cross, self.cross_residual = cross, residual()
        if feedforward is not None:
            self.feedforward, self.feedforward_residual = feedforward, residual()
        self.thinks = feedforward is not None

    def forward(
        self, x: Tensor, real: Tensor | None, past: Memory | None, source: Memory | None, rotation: Rotation | None
    ) -> tuple[Tensor, Memory]:
        """The new x, and the memory that later places will look at. `real` marks padding in x, `past` precedes it."""
        with scope("self"):
            y, memory = self.own.self_attend(self.self_attention_residual.before(x), self.rule, real, past, rotation)
        x = self.self_attention_residual.after(x, y)
        if source is not None:
            with scope("cross"):
                x = self.cross_residual.after(x, self.cross(self.cross_residual.before(x), source))
        if self.thinks:
            x = self.feedforward_residual.after(x, self.feedforward(self.feedforward_residual.before(x)))
        return x, memory


class Stack(nn.Module):
    """BlockBatch on top of each other; `final` is the norm that pre-norm stacks end with."""

    def __init__(self, blocks: list[Block], final: nn.Module):
        super().__init__()
        self.blocks, self.final = nn.ModuleList(blocks), final

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        """`past` and `source` have a memory for each block, or none."""
        memories = []
        for number, block in enumerate(self.blocks):
            with scope(f"blocks.{number}"):
                own, cross = (past[number] if past else None), (source[number] if source else None)
                x, memory = block(x, real, own, cross, rotation)
                memories.append(memory)
        return self.final(x), tuple(memories)

    def read(self, source: Tensor, real: Tensor | None) -> tuple[Memory, ...]:
        """What each block remembers of an encoded source; made once, for all steps and hypotheses."""
        blocks = cast(list[Block], list(self.blocks))
        return tuple(block.cross.remember(source, real) for block in blocks)
