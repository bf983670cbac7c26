"""A stack of blocks that loses no time between its products when one token comes after another.

What it computes is what the blocks compute; only the calls in between are spared. Whatever is not the common case (many
tokens at once, padding, somebody watching) goes the blocks' own way.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.masks import Both, Window, causal
from regard.attention.positions import Turn
from regard.attention.scores import Product
from regard.attention.trace import recorder
from regard.layers.blocks import Block, FeedForward, Gated, PostNorm, PreNorm, Stack
from regard.runtime.products import Int8

Function = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Memory, Turn | None], tuple[Tensor, Memory]]  # x (rows, width)


class Swift(Stack):
    """The blocks of another stack, and for each a step over one token."""

    def __init__(self, stack: Stack):
        super().__init__(list(stack.blocks), stack.final)  # type: ignore[arg-type]
        self.steps = [step_of(block) for block in self.blocks]

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        turn: Turn | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        common = past and x.size(1) == 1 and not source and past[0].real is None and not torch.is_grad_enabled()
        if not common or recorder():
            return super().forward(x, real, past, source, turn)
        x, memories = x.squeeze(1), []
        for step, memory in zip(self.steps, past, strict=True):
            x, memory = step(x, memory, turn)
            memories.append(memory)
        return self.final(x).unsqueeze(1), tuple(memories)


def possible(stack: Stack) -> bool:
    """Whether all blocks are of the kinds that steps are known for."""
    return all(isinstance(block, Block) and _known(block) for block in stack.blocks)


def _known(block: Block) -> bool:
    return (
        isinstance(block.own.score, Product)
        and block.own.together is not None
        and type(block.own_residual) in (PreNorm, PostNorm)
        and block.thinks
        and type(block.feedforward) in (FeedForward, Gated)
        and (block.rule is causal or _window(block) > 0)
    )


def _window(block: Block) -> int:
    """How many places a block with a band of them sees; 0 for all."""
    rule = block.rule
    return rule.other.size if isinstance(rule, Both) and rule.one is causal and isinstance(rule.other, Window) else 0


def step_of(block: Any) -> Step:
    """One token through a block, as a function with all it needs at hand."""
    own, pre, window = block.own, isinstance(block.own_residual, PreNorm), _window(block)
    heads, key_heads, borders = own.heads, own.key_heads, own.borders
    together, output, think = function(own.together), function(own.output), thinking(block.feedforward)
    first, second = norm(block.own_residual.norm), norm(block.feedforward_residual.norm)
    scale = own.score.scale(borders[0] // heads)
    attend, grouped = F.scaled_dot_product_attention, heads != key_heads

    def step(x: Tensor, memory: Memory, turn: Turn | None) -> tuple[Tensor, Memory]:
        rows = x.size(0)
        query, key, value = together(first(x) if pre else x).tensor_split(borders, -1)
        query, key = query.view(rows, heads, 1, -1), key.view(rows, key_heads, 1, -1)
        if turn is not None:
            query, key = turn(query), turn(key)
        memory = memory.extended(Memory(key, value.view(rows, key_heads, 1, -1)))
        keys, values = memory.key, memory.value
        if window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        y = output(attend(query, keys, values, scale=scale, enable_gqa=grouped).view(rows, -1))
        if pre:
            x = y.add_(x)
            return think(second(x)).add_(x), memory
        x = first(y.add_(x))
        return second(think(x).add_(x)), memory

    return step


def thinking(network: FeedForward | Gated) -> Function:
    """A feed-forward network as one function."""
    bend, narrow, widen = network.bend, function(network.narrow), function(network.widen)
    if isinstance(network, Gated):
        gate = function(network.gate)
        return lambda x: narrow(bend(gate(x)) * widen(x))
    return lambda x: narrow(bend(widen(x)))


def norm(module: nn.Module) -> Function:
    if isinstance(module, nn.LayerNorm):
        shape, weight, bias, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
    return module.forward


def function(module: Any) -> Function:
    """A product without the calls around it."""
    if isinstance(module, Int8):
        return module.row_or_rows()
    weight, bias = module.weight.t(), module.bias
    if bias is None:
        return lambda x: torch.mm(x, weight)
    return lambda x: torch.mm(x, weight).add_(bias)
