"""A stack of blocks over whole texts that computes nothing for padding.

    rows of several lengths ─▶ all tokens side by side ─▶ [ products · attention among each text's own ] × depth ─▶ rows

Products are few and large, and see real tokens only; each text attends to itself, without a mask. What it
computes is what the blocks compute. Whoever watches, trains or asks for anything else goes the blocks' own way.

Shapes: rows (batch, length, width); x (tokens, width), the tokens of equally long texts one after another.
"""

from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.positions import Rotation
from regard.attention.scores import Product
from regard.attention.trace import recorder
from regard.kernels import bindings as kernels
from regard.layers.activations import NUMBERS
from regard.layers.blocks import Block, FeedForward, PostNorm, PreNorm, Stack
from regard.runtime.linear import PackedLinear, PackedWeights
from regard.runtime.packed_qkv import joinable


class Unpadded(Stack):
    """The blocks of another stack, over tokens side by side."""

    def __init__(self, stack: Stack):
        super().__init__(list(stack.blocks), stack.final)  # type: ignore[arg-type]
        self.train(stack.training)

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        """As the blocks do, but without memories: nothing comes after a whole text."""
        if past or source or rotation is not None or recorder() or self.training or not kernels.plain(x):
            return super().forward(x, real, past, source, rotation)
        layout = Layout.of(x, real)
        states = layout.together(x)
        for block in cast(list[Block], list(self.blocks)):
            states = through(block, states, layout.groups)
        return layout.apart(self.final(states), x.shape), ()


class Layout(NamedTuple):
    """Where the tokens of rows stand when they are side by side."""

    groups: list[tuple[int, int]]  # so many texts of this length each
    places: Tensor | None  # of each token among all places of the rows; nothing where all are real

    @classmethod
    def of(cls, x: Tensor, real: Tensor | None) -> "Layout":
        batch, length = x.shape[:2]
        if real is None:
            return cls([(batch, length)], None)
        lengths, order = real.sum(1).sort(descending=True, stable=True)
        sizes, counts = lengths.unique_consecutive(return_counts=True)
        rows = torch.arange(batch * length).view(batch, length)[order]
        groups = [(count, size) for count, size in zip(counts.tolist(), sizes.tolist(), strict=True) if size]
        return cls(groups, rows[real[order]])

    def together(self, x: Tensor) -> Tensor:
        """Rows → the real tokens of all of them."""
        flat = x.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def apart(self, x: Tensor, shape: torch.Size) -> Tensor:
        """Tokens → rows, with zeros for padding."""
        if self.places is None:
            return x.view(shape)
        return x.new_zeros(shape[0] * shape[1], shape[2]).index_copy_(0, self.places, x).view(shape)


def possible(stack: nn.Module) -> TypeGuard[Stack]:
    """Whether these are blocks, all of the kinds that this is known for."""
    return isinstance(stack, Stack) and all(_known(block) for block in stack.blocks)


def _known(block: Any) -> bool:
    return (
        type(block) is Block
        and type(block.own) is Attention
        and isinstance(block.own.score, Product)
        and block.own.relation is None
        and block.own.heads == block.own.key_heads
        and bool(joinable(block.own))
        and type(block.self_attention_residual) in (PreNorm, PostNorm)
        and block.rule is None
        and block.thinks
        and type(block.feedforward) is FeedForward
        and type(block.feedforward.bend) in NUMBERS
    )


def through(block: Block, x: Tensor, groups: list[tuple[int, int]]) -> Tensor:
    """One block: look, then think; each inside its residual."""
    own, think = block.own, cast(FeedForward, block.feedforward)
    assert own.together is not None
    context = attend(own, own.together(block.self_attention_residual.before(x)), groups)
    x = _after(block.self_attention_residual, added(x, own.output, context))
    hidden = bent(think.bend, think.widen, block.feedforward_residual.before(x))
    return _after(block.feedforward_residual, added(x, think.narrow, hidden))


def attend(own: Attention, projected: Tensor, groups: list[tuple[int, int]]) -> Tensor:
    """Contexts from queries, keys and values side by side, texts of one length at a time."""
    if isinstance(own.together, PackedWeights):
        lengths = [length for texts, length in groups for _ in range(texts)]
        return kernels.looked(projected, lengths, own.heads, cast(Product, own.score).scale(own.sizes[0] // own.heads))
    contexts = projected.new_empty(len(projected), projected.size(1) // 3)
    sizes = [texts * length for texts, length in groups]
    for (texts, length), part, place in zip(groups, projected.split(sizes), contexts.split(sizes), strict=True):
        query, key, value = part.view(texts, length, 3, own.heads, -1).permute(2, 0, 3, 1, 4)
        context, _ = own.fused(query, Memory(key, value))
        place.view(texts, length, own.heads, -1).copy_(context.transpose(1, 2))
    return contexts


def added(x: Tensor, linear: Any, y: Tensor) -> Tensor:
    """x + linear(y), summed while it is multiplied."""
    if isinstance(linear, PackedLinear):
        return linear.laid(y, add=x)
    if type(linear) is not nn.Linear:
        return linear(y).add_(x)
    whole = x.clone() if linear.bias is None else x + linear.bias
    return whole.addmm_(y, linear.weight.t())


def bent(bend: nn.Module, linear: Any, x: Tensor) -> Tensor:
    """bend(linear(x)), bent while it is multiplied where it can be."""
    return linear.laid(x, bend=NUMBERS[type(bend)]) if isinstance(linear, PackedLinear) else bend(linear(x))


def _after(residual: PostNorm, x: Tensor) -> Tensor:
    """What a residual does with a sum."""
    return x if isinstance(residual, PreNorm) else residual.norm(x)
