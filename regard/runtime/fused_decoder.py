"""A stack of decoder blocks whose steps over one token are one call of our kernels (`kernels/decode_step.c`).

Threads are started once instead of for each product, and nothing is called from Python in between. Everything else
(many tokens at once, padding, also of a source, a recorder) goes through the blocks themselves.
"""

from typing import Any

import torch
from torch import Tensor

from regard.attention.core import Memory
from regard.attention.masks import Both, Window, causal
from regard.attention.positions import Rotation
from regard.attention.recording import recorder
from regard.attention.scores import Product
from regard.kernels import bindings, ops
from regard.layers.blocks import Block, FeedForward, GatedFeedForward, PostNorm, PreNorm, Stack
from regard.runtime.linear import PackedQKV, WeightOnlyInt8Linear

UNREAD = tuple(f"cross.{name}.{kind}" for name in ("key", "value") for kind in ("weight", "bias"))  # in a step


class FusedDecoder(Stack):
    """The blocks of another stack, and their weights as the kernels read them."""

    def __init__(self, stack: Stack):
        super().__init__(list(stack.blocks), stack.final)  # type: ignore[arg-type]
        self.members: list[tuple[dict[str, Any], str, Any]] = []  # submodules and parameters that `args` was made from
        self.addresses: list[int] = []  # of these parameters
        self.args: Any = None
        self.has_cross = hasattr(self.blocks[0], "cross")
        self.train(stack.training)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"members": [], "addresses": [], "args": None}  # pointers are not valid in a copy

    def forward(
        self,
        x: Tensor,
        real: Tensor | None = None,
        past: tuple[Memory, ...] = (),
        source: tuple[Memory, ...] = (),
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, tuple[Memory, ...]]:
        one_token = past and x.size(1) == 1 and real is None and past[0].real is None
        one_token = one_token and bool(source) == self.has_cross and all(map(_is_readable, source))
        same_shape = past and past[0].key.dtype == x.dtype and past[0].key.size(0) == x.size(0)
        inference = not recorder() and not self.training and ops.supports_small_batch(x)
        if not (one_token and same_shape and inference and (blocks := self.block_args())):
            return super().forward(x, real, past, source, rotation)
        length = past[0].length
        memories = [memory.reserve(1) for memory in past]
        caches = (bindings.KVCache * len(memories))(*map(_cache_args, memories))
        sources = (bindings.Source * len(source))(*(_source_args(memory, len(x)) for memory in source))
        x = x.squeeze(1).clone(memory_format=torch.contiguous_format)
        ops.decode_step(blocks, caches, sources if source else None, x, length, _rotary_args(rotation))
        return self.final(x).unsqueeze(1), tuple(_extended(memory, length + 1) for memory in memories)

    def remember(self, source: Tensor, real: Tensor | None) -> tuple[Memory, ...]:
        """In the order in which the kernels read keys and values."""
        memories = super().remember(source, real)
        return tuple(each._replace(key=each.key.contiguous(), value=each.value.contiguous()) for each in memories)

    def block_args(self) -> Any:
        """The blocks for the kernels; None where weights have been replaced by what they cannot read."""
        unchanged = self.members and all(holder.get(name) is member for holder, name, member in self.members)
        if unchanged and self._parameter_addresses() == self.addresses:
            return self.args
        self.members = [
            (holder, name, member)
            for module in self.modules()
            for holder in (module._modules, module._parameters)
            for name, member in holder.items()
        ]
        self.addresses = self._parameter_addresses()
        packed = [qkv for block in self.blocks if isinstance(qkv := block.self_attention.qkv, PackedQKV)]  # type: ignore[union-attr]
        read = [weight for name, weight in self.named_parameters() if not name.endswith(UNREAD)]
        readable = all(qkv.is_current for qkv in packed) and all(map(ops.is_contiguous_float32, read))
        self.args = (bindings.Block * len(self.blocks))(*map(_block_args, self.blocks)) if readable else None
        return self.args

    def _parameter_addresses(self) -> list[int]:
        return [member.data_ptr() for _, _, member in self.members if isinstance(member, Tensor)]


def is_supported(stack: Stack) -> bool:
    """Whether the kernels support these blocks, all with one type of norm."""
    blocks = [block for block in stack.blocks if isinstance(block, Block) and _is_supported_block(block)]
    norms = {type(block.self_attention_residual) for block in blocks}
    return ops.available() and len(blocks) == len(stack.blocks) and len(norms) == 1


def _is_supported_block(block: Block) -> bool:
    return (
        isinstance(block.self_attention.score, Product)
        and block.self_attention.position_bias is None
        and block.self_attention.qkv is not None
        and block.self_attention.sizes[1] == block.self_attention.sizes[2]
        and type(block.self_attention_residual) in (PreNorm, PostNorm)
        and block.has_feedforward
        and type(block.feedforward_residual) is type(block.self_attention_residual)
        and type(block.feedforward) in (FeedForward, GatedFeedForward)
        and ops.activation_id(block.feedforward.activation) > 0  # type: ignore[arg-type]
        and (block.rule is causal or _window(block) > 0)
        and (not hasattr(block, "cross") or _is_supported_cross(block))
    )


def _is_supported_cross(block: Block) -> bool:
    """Cross-attention of the same heads, with a norm before it."""
    same = block.cross.heads == block.cross.key_heads == block.self_attention.heads
    same = same and block.cross.score is block.self_attention.score
    return same and isinstance(block.cross_residual, PreNorm) and isinstance(block.self_attention_residual, PreNorm)


def _window(block: Block) -> int:
    """The size of a sliding window; 0 without."""
    rule = block.rule
    return rule.other.size if isinstance(rule, Both) and rule.one is causal and isinstance(rule.other, Window) else 0


def _block_args(block: Any) -> bindings.Block:
    attention = block.self_attention
    feedforward = block.feedforward
    head_width = attention.sizes[0] // attention.heads
    gated = isinstance(feedforward, GatedFeedForward)
    crosses = hasattr(block, "cross")
    return bindings.Block(
        attention_norm=ops.norm_args(block.self_attention_residual.norm),
        feedforward_norm=ops.norm_args(block.feedforward_residual.norm),
        cross_norm=ops.norm_args(block.cross_residual.norm) if crosses else bindings.Norm(),
        cross_query=_linear_args(block.cross.query) if crosses else bindings.Linear(),
        cross_output=_linear_args(block.cross.output) if crosses else bindings.Linear(),
        qkv=_linear_args(attention.qkv),
        output=_linear_args(attention.output),
        gate=_linear_args(feedforward.gate) if gated else bindings.Linear(),
        up=_linear_args(feedforward.up),
        down=_linear_args(feedforward.down),
        heads=attention.heads,
        key_heads=attention.key_heads,
        head_width=head_width,
        window=_window(block),
        pre_norm=isinstance(block.self_attention_residual, PreNorm),
        activation=ops.activation_id(feedforward.activation),
        scale=attention.score.scale(head_width),
    )


def _linear_args(module: Any) -> bindings.Linear:
    return module.args if isinstance(module, WeightOnlyInt8Linear) else ops.linear_args(module.weight, module.bias)


def _cache_args(memory: Memory) -> bindings.KVCache:
    assert memory.storage
    keys, values = memory.storage
    return bindings.KVCache(keys.data_ptr(), values.data_ptr(), keys.size(2))


def _is_readable(memory: Memory) -> bool:
    """Whether the kernels can attend to a source: float32, without padding."""
    return memory.real is None and all(map(ops.is_contiguous_float32, (memory.key, memory.value)))


def _source_args(memory: Memory, rows: int) -> bindings.Source:
    sources, _, length, _ = memory.key.shape
    return bindings.Source(memory.key.data_ptr(), memory.value.data_ptr(), length, rows // sources)


def _extended(memory: Memory, length: int) -> Memory:
    """With the token that was appended to its storage."""
    assert memory.storage
    key, value = (buffer.narrow(2, 0, length) for buffer in memory.storage)
    return memory._replace(key=key, value=value)


def _rotary_args(rotation: Rotation | None) -> bindings.Rotary:
    """Of one position: the same for all rows, or one for each."""
    if rotation is None:
        return bindings.Rotary()
    cosine, sine = (table.contiguous() for table in rotation)
    args = bindings.Rotary(cosine.data_ptr(), sine.data_ptr(), cosine.size(-1) if cosine.ndim == 4 else 0)
    args.tensors = cosine, sine  # kept as long as the pointers
    return args
