"""A stack of blocks that loses no time between its products when one token comes after another.

What it computes is what the blocks compute, in one call of our kernels (`kernels/few.c`): threads need not be asked for
each product, and nothing is fetched from Python in between. Whatever is not the common case (many tokens at once,
padding, somebody watching) goes the blocks' own way.
"""

from typing import Any

import torch
from torch import Tensor

from regard.attention.core import Memory
from regard.attention.masks import Both, Window, causal
from regard.attention.positions import Rotation
from regard.attention.scores import Product
from regard.attention.trace import recorder
from regard.kernels import bindings as kernels
from regard.layers.activations import NUMBERS
from regard.layers.blocks import Block, FeedForward, GatedFeedForward, PostNorm, PreNorm, Stack
from regard.runtime.linear import WeightOnlyInt8Linear
from regard.runtime.packed_qkv import PackedQKV


class FusedDecoder(Stack):
    """The blocks of another stack, and where the kernels find all that they are made of."""

    def __init__(self, stack: Stack):
        super().__init__(list(stack.blocks), stack.final)  # type: ignore[arg-type]
        self.found: tuple[list[int], Any] | None = None  # as of the weights that are there
        self.train(stack.training)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"found": None}  # pointers mean nothing to a copy

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        alone = past and x.size(1) == 1 and real is None and past[0].real is None and not source
        alike = past and past[0].key.dtype == x.dtype and past[0].key.size(0) == x.size(0)
        unseen = not recorder() and not self.training
        if not (alone and alike and unseen and kernels.few(x) and (blocks := self.laid_out())):
            return super().forward(x, real, past, source, rotation)
        before = past[0].length
        memories = [memory.reserve(1) for memory in past]
        rooms = (kernels.Room * len(memories))(*[_room(memory) for memory in memories])
        x = x.squeeze(1).clone(memory_format=torch.contiguous_format)
        kernels.stepped(blocks, rooms, x, before, _angles(rotation))
        return self.final(x).unsqueeze(1), tuple(_longer(memory, before + 1) for memory in memories)

    def laid_out(self) -> Any:
        """The blocks as the kernels know them; nothing where weights are no longer what they were made to be."""
        joints = [each for block in self.blocks if isinstance(each := block.own.together, PackedQKV)]  # type: ignore[union-attr]
        if not all(joint.holds for joint in joints) or not all(map(kernels.usable, self.parameters())):
            return None
        places = [parameter.data_ptr() for parameter in self.parameters()]
        if self.found is None or self.found[0] != places:
            self.found = places, (kernels.Block * len(self.blocks))(*map(_block, self.blocks))
        return self.found[1]


def possible(stack: Stack) -> bool:
    """Whether all blocks are of the kinds that the kernels know."""
    blocks = [block for block in stack.blocks if isinstance(block, Block) and _known(block)]
    return (
        kernels.built()
        and len(blocks) == len(stack.blocks)
        and len({type(each.self_attention_residual) for each in blocks}) == 1
    )


def _known(block: Block) -> bool:
    return (
        isinstance(block.own.score, Product)
        and block.own.relation is None
        and block.own.together is not None
        and block.own.sizes[1] == block.own.sizes[2]
        and type(block.self_attention_residual) in (PreNorm, PostNorm)
        and block.thinks
        and type(block.feedforward_residual) is type(block.self_attention_residual)
        and type(block.feedforward) in (FeedForward, GatedFeedForward)
        and type(block.feedforward.bend) in NUMBERS
        and (block.rule is causal or _window(block) > 0)
    )


def _window(block: Block) -> int:
    """How many places a block with a band of them sees; 0 for all."""
    rule = block.rule
    return rule.other.size if isinstance(rule, Both) and rule.one is causal and isinstance(rule.other, Window) else 0


def _block(block: Any) -> kernels.Block:
    own, think = block.own, block.feedforward
    head = own.sizes[0] // own.heads
    return kernels.Block(
        norm=kernels.norm(block.self_attention_residual.norm),
        other_norm=kernels.norm(block.feedforward_residual.norm),
        together=_product(own.together),
        output=_product(own.output),
        gate=_product(think.gate) if isinstance(think, GatedFeedForward) else kernels.Product(),
        widen=_product(think.widen),
        narrow=_product(think.narrow),
        heads=own.heads,
        key_heads=own.key_heads,
        width=head,
        window=_window(block),
        pre=isinstance(block.self_attention_residual, PreNorm),
        bend=NUMBERS[type(think.bend)],
        scale=own.score.scale(head),
    )


def _product(module: Any) -> kernels.Product:
    return module.product if isinstance(module, WeightOnlyInt8Linear) else kernels.product(module.weight, module.bias)


def _room(memory: Memory) -> kernels.Room:
    assert memory.room
    keys, values = memory.room
    return kernels.Room(keys.data_ptr(), values.data_ptr(), keys.size(2))


def _longer(memory: Memory, length: int) -> Memory:
    """What was written behind it belongs to it."""
    assert memory.room
    key, value = (whole.narrow(2, 0, length) for whole in memory.room)
    return memory._replace(key=key, value=value)


def _angles(rotation: Rotation | None) -> kernels.Angles:
    """Of one place: the same for all rows, or a row's own."""
    if rotation is None:
        return kernels.Angles()
    cosine, sine = (each.contiguous() for each in rotation)
    angles = kernels.Angles(cosine.data_ptr(), sine.data_ptr(), cosine.size(-1) if cosine.ndim == 4 else 0)
    angles.kept = cosine, sine  # as long as the pointers are
    return angles
