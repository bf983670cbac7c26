"""A stack of blocks that loses no time between its products when one token comes after another.

What it computes is what the blocks compute; only the calls in between are spared: a step through a block is compiled
(TorchScript), since after every product the caches hold weights, and each call from Python must be fetched anew.
Whatever is not the common case (many tokens at once, padding, somebody watching) goes the blocks' own way.
"""

import warnings
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.masks import Both, Window, causal
from regard.attention.positions import Turn
from regard.attention.scores import Product
from regard.attention.trace import recorder
from regard.layers.blocks import Block, FeedForward, Gated, PostNorm, PreNorm, Stack
from regard.runtime import products
from regard.runtime.products import FEW, Int8, slice_of, streamed


class Swift(Stack):
    """The blocks of another stack, and for each a step over one token."""

    def __init__(self, stack: Stack):
        super().__init__(list(stack.blocks), stack.final)  # type: ignore[arg-type]
        self.one_row = any(isinstance(module, Int8) for module in stack.modules())
        self.steps: list[Any] = []

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        turn: Turn | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        alone = past and x.size(1) == 1 and not source and past[0].real is None
        plain = x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled() and not recorder()
        if not (alone and plain) or (self.one_row and x.size(0) > 1):
            return super().forward(x, real, past, source, turn)
        if not self.steps:
            self.steps = [compiled(Step(block)) for block in self.blocks]
        x, memories, (cosine, sine) = x.squeeze(1), [], turn or (None, None)
        for step, memory in zip(self.steps, past, strict=True):
            memory = memory.roomy(1)
            assert memory.room
            x, key, value = step(x, *memory.room, memory.length, cosine, sine)
            memories.append(memory._replace(key=key, value=value))
        return self.final(x).unsqueeze(1), tuple(memories)


def compiled(step: "Step") -> Any:
    """The step as a function; where sources are not at hand, or torch compiles no more, as it is."""
    with warnings.catch_warnings():  # torch means to give this up one day
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return torch.jit.script(step)._c._get_method("forward")
        except (OSError, AttributeError):
            return step


def possible(stack: Stack) -> bool:
    """Whether all blocks are of the kinds that steps are known for."""
    return all(isinstance(block, Block) and _known(block) for block in stack.blocks)


def _known(block: Block) -> bool:
    return (
        isinstance(block.own.score, Product)
        and block.own.relation is None
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


class Step(nn.Module):
    """One token through a block. Its keys and values are written behind the others, into the room there is for them.

    Shapes: x (rows, width), keys and values (rows, heads, room, width), cosine and sine as a Turn has them.
    """

    pre: Final[bool]
    grouped: Final[bool]
    window: Final[int]

    def __init__(self, block: Any):
        super().__init__()
        own = block.own
        self.pre, self.grouped = isinstance(block.own_residual, PreNorm), own.heads != own.key_heads
        self.heads, self.key_heads, self.window = own.heads, own.key_heads, _window(block)
        self.first, self.second = own.sizes[0], own.sizes[0] + own.sizes[1]
        self.scale: float = own.score.scale(self.first // self.heads)
        self.together, self.output = product(own.together), product(own.output)
        self.think = Thought(block.feedforward)
        self.norm, self.other_norm = block.own_residual.norm, block.feedforward_residual.norm

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, length: int, cosine: Tensor | None, sine: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = x.size(0)
        y = self.together(self.norm(x) if self.pre else x)
        query = y[:, : self.first].view(rows, self.heads, 1, -1)
        key = y[:, self.first : self.second].view(rows, self.key_heads, 1, -1)
        if cosine is not None and sine is not None:
            query, key = turned(query, cosine, sine), turned(key, cosine, sine)
        keys.narrow(2, length, 1).copy_(key)
        values.narrow(2, length, 1).copy_(y[:, self.second :].view(rows, self.key_heads, 1, -1))
        key, value = keys.narrow(2, 0, length + 1), values.narrow(2, 0, length + 1)
        near, far = key, value
        if self.window > 0:
            near, far = key[:, :, -self.window :], value[:, :, -self.window :]
        context = F.scaled_dot_product_attention(query, near, far, scale=self.scale, enable_gqa=self.grouped)
        y = self.output(context.view(rows, -1)).add_(x)
        if self.pre:
            return self.think(self.other_norm(y)).add_(y), key, value
        x = self.norm(y)
        return self.other_norm(self.think(x).add_(x)), key, value


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """What a Turn does."""
    one, other = x.chunk(2, -1)
    return x * cosine + torch.cat([-other, one], -1) * sine


class Thought(nn.Module):
    """A feed-forward network, gated or not."""

    gated: Final[bool]

    def __init__(self, network: FeedForward | Gated):
        super().__init__()
        self.gated = isinstance(network, Gated)
        self.gate = product(network.gate) if isinstance(network, Gated) else nn.Identity()
        self.widen, self.narrow, self.bend = product(network.widen), product(network.narrow), network.bend

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            return self.narrow(self.bend(self.gate(x)) * self.widen(x))
        return self.narrow(self.bend(self.widen(x)))


def product(module: Any) -> nn.Module:
    """A product without what is around it."""
    if isinstance(module, Int8):
        return module.row
    kind = InPlace if products.BY_ROWS else ByRows if module.weight.is_contiguous() else ByColumns
    return kind(module.weight.detach(), None if module.bias is None else module.bias.detach())


class InPlace(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return streamed(x, self.weight, self.bias)


class ByColumns(nn.Module):
    few: Final[int]

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.turned, self.bias, self.few = weight.t(), bias, FEW
        self.slices = self.turned.unflatten(0, (-1, slice_of(weight.size(1))))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.size(0)
        if rows > 1 and rows <= self.few:
            y = torch.bmm(x.reshape(rows, self.slices.size(0), -1).transpose(0, 1), self.slices).sum(0)
        else:
            y = torch.mm(x, self.turned)
        return y if self.bias is None else y.add_(self.bias)


class ByRows(nn.Module):
    """Rows of inputs are better read as columns, but for very few."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight) if x.size(0) < 4 else torch.mm(self.weight, x.t()).t()
        return y if self.bias is None else y.add_(self.bias)
