"""Blocks: what a stack is made of. One class serves encoders and decoders, self and cross attention.

Shapes: x (batch, length, width).
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.core import Attention, Memory
from regard.attention.masks import Rule
from regard.attention.trace import place
from regard.layers.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # as GPT-2 computes it
    "swish": F.silu,
    "tanh": F.tanh,
}


class FeedForward(nn.Module):
    """Each place for itself: widen, bend, narrow. Vaswani et al. 2017, equation 2."""

    def __init__(self, width: int, hidden: int, activation: str):
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.bend = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.bend(self.widen(x)))


class PostNorm(nn.Module):
    """Norm(x + sublayer(x)), as in the 2017 paper."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)))


class PreNorm(PostNorm):
    """x + sublayer(Norm(x)): the residual path stays free, deep stacks train without warm-up."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


class Block(nn.Module):
    """Look at oneself, look at the source if there is one, then think; each inside its residual."""

    def __init__(
        self, residual: Callable[[], PostNorm], own: Attention, feedforward: nn.Module, cross: Attention | None
    ):
        super().__init__()
        self.own, self.own_residual = own, residual()
        self.cross, self.cross_residual = cross, residual() if cross else None
        self.feedforward, self.feedforward_residual = feedforward, residual()

    def forward(
        self, x: Tensor, rule: Rule | None, real: Tensor | None, past: Memory | None, source: Memory | None
    ) -> tuple[Tensor, Memory]:
        """The new x, and the memory that later places will look at. `real` marks padding in x, `past` precedes it."""
        memory: list[Memory] = []

        def look_at_own(x: Tensor) -> Tensor:
            now = self.own.remember(x, real)
            memory.append(now if past is None else past.extended(now))
            return self.own(x, memory[0], rule)

        with place("self"):
            x = self.own_residual(x, look_at_own)
        if self.cross is not None and self.cross_residual is not None and source is not None:
            with place("cross"):
                x = self.cross_residual(x, lambda x: self.cross(x, source))  # type: ignore[misc]
        return self.feedforward_residual(x, self.feedforward), memory[0]


class Stack(nn.Module):
    """Blocks on top of each other; `final` is the norm that pre-norm stacks end with."""

    def __init__(self, blocks: list[Block], final: nn.Module):
        super().__init__()
        self.blocks, self.final = nn.ModuleList(blocks), final

    def forward(
        self,
        x: Tensor,
        rule: Rule | None = None,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        """`past` and `source` have a memory for each block, or none."""
        memories = []
        for number, block in enumerate(self.blocks):
            with place(f"blocks.{number}"):
                own, cross = (past[number] if past else None), (source[number] if source else None)
                x, memory = block(x, rule, real, own, cross)
                memories.append(memory)
        return self.final(x), tuple(memories)

    def read(self, source: Tensor, real: Tensor | None) -> tuple[Memory, ...]:
        """What each block remembers of an encoded source; made once, for all steps and hypotheses."""
        return tuple(block.cross.remember(source, real) for block in self.blocks)  # type: ignore[union-attr]
