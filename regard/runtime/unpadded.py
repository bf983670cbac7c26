"""A stack of encoder blocks that computes nothing for padding.

    rows of several lengths ─▶ concatenated tokens ─▶ [ linear layers · attention within each text ] × depth ─▶ rows

Matrix products are few and large, over real tokens only; each text attends to itself, without a mask. Results are those
of the blocks. Training, recording and anything else goes through the blocks themselves.

Shapes: rows (batch, length, width); x (tokens, width), the tokens of equally long texts next to each other.
"""

from typing import NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.positions import Rotation
from regard.attention.recording import recorder
from regard.attention.scores import Product
from regard.kernels import ops
from regard.layers.blocks import Block, FeedForward, PostNorm, PreNorm, Stack, StochasticDepth
from regard.runtime.linear import PackedLinear, PackedWeights, packable


class Unpadded(Stack):
    """The blocks of another stack, over concatenated tokens."""

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
        """As the blocks do, but without memories: an encoder's text is complete."""
        if past or source or rotation is not None or recorder() or self.training or not ops.is_inference(x):
            return super().forward(x, real, past, source, rotation)
        layout = Layout.of(x, real)
        states = layout.concatenate(x)
        for block in cast(list[Block], list(self.blocks)):
            states = apply_block(block, states, layout.groups)
        return layout.pad(self.final(states), x.shape), ()


class Layout(NamedTuple):
    """Where the tokens of padded rows are when they are concatenated."""

    groups: list[tuple[int, int]]  # (texts, their length)
    positions: Tensor | None  # of each token in the flattened rows; None without padding

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

    def concatenate(self, x: Tensor) -> Tensor:
        """Rows → the real tokens of all of them."""
        flat = x.flatten(0, 1)
        return flat if self.positions is None else flat.index_select(0, self.positions)

    def pad(self, x: Tensor, shape: torch.Size) -> Tensor:
        """Tokens → rows, with zeros for padding."""
        if self.positions is None:
            return x.view(shape)
        return x.new_zeros(shape[0] * shape[1], shape[2]).index_copy_(0, self.positions, x).view(shape)


def is_supported(stack: nn.Module) -> TypeGuard[Stack]:
    """Whether all blocks of a stack are of the types that `apply_block` computes."""
    return isinstance(stack, Stack) and all(map(_is_supported_block, stack.blocks))


def _is_supported_block(block: nn.Module) -> bool:
    return (
        type(block) is Block
        and type(block.self_attention) is Attention
        and isinstance(block.self_attention.score, Product)
        and block.self_attention.position_bias is None
        and block.self_attention.heads == block.self_attention.key_heads
        and bool(packable(block.self_attention))
        and type(block.self_attention_residual) in (PreNorm, PostNorm, StochasticDepth)
        and block.rule is None
        and block.has_feedforward
        and type(block.feedforward) is FeedForward
        and ops.activation_id(block.feedforward.activation) > 0
    )


def apply_block(block: Block, x: Tensor, groups: list[tuple[int, int]]) -> Tensor:
    """Self-attention, then the feed-forward network, each with its residual connection."""
    attention = block.self_attention
    feedforward = cast(FeedForward, block.feedforward)
    assert attention.qkv is not None
    context = attend(attention, attention.qkv(block.self_attention_residual.before(x)), groups)
    x = _normalize_after(block.self_attention_residual, add_linear(x, attention.output, context))
    normed = block.feedforward_residual.before(x)
    if isinstance(feedforward.up, PackedLinear):
        hidden = feedforward.up.packed(normed, activation=ops.activation_id(feedforward.activation))
    else:
        hidden = feedforward.activation(feedforward.up(normed))
    return _normalize_after(block.feedforward_residual, add_linear(x, feedforward.down, hidden))


def attend(attention: Attention, qkv: Tensor, groups: list[tuple[int, int]]) -> Tensor:
    """Contexts (tokens, width) from queries, keys and values (tokens, 3 · width)."""
    if isinstance(attention.qkv, PackedWeights):
        lengths = [length for texts, length in groups for _ in range(texts)]
        scale = cast(Product, attention.score).scale(attention.sizes[0] // attention.heads)
        return ops.attention_varlen(qkv, lengths, attention.heads, scale)
    contexts = qkv.new_empty(len(qkv), qkv.size(1) // 3)
    sizes = [texts * length for texts, length in groups]
    for (texts, length), group, out in zip(groups, qkv.split(sizes), contexts.split(sizes), strict=True):
        query, key, value = group.view(texts, length, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)
        context, _ = attention.fused(query, Memory(key, value))
        out.view(texts, length, attention.heads, -1).copy_(context.transpose(1, 2))
    return contexts


def add_linear(x: Tensor, linear: nn.Module, y: Tensor) -> Tensor:
    """x + linear(y), added by the product itself where possible."""
    if isinstance(linear, PackedLinear):
        return linear.packed(y, residual=x)
    if type(linear) is not nn.Linear:
        return linear(y).add_(x)
    out = x.clone() if linear.bias is None else x + linear.bias
    return out.addmm_(y, linear.weight.t())


def _normalize_after(residual: PostNorm, x: Tensor) -> Tensor:
    return x if isinstance(residual, PreNorm) else residual.norm(x)
