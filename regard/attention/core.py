"""Attention: queries attend to a memory of keys and values. Every model attends through this file.

Shapes, throughout:
    x        (rows, queries, width)             rows = batch, or batch × hypotheses of one source
    query    (batch, heads, queries, width)
    key      (batch, heads, length,  width)     fewer heads in grouped-query attention
    real     (batch, length)                    False where padded
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.attention.masks import Bias, Padding, Rule, causal
from regard.attention.positions import Rotation
from regard.attention.recording import AttentionRecord, recorder
from regard.attention.scores import Product, Score, scaled_dot, weigh
from regard.kernels.ops import scaled_dot_product_attention

BAND = 1 << 22  # elements of a mask or bias that are materialised at a time


class Memory(NamedTuple):
    """Keys and values: of an encoded source, or of the previous positions of a decoder (a KV cache)."""

    key: Tensor
    value: Tensor
    real: Tensor | None = None
    start: int = 0  # the position of the first key: that many were dropped
    storage: tuple[Tensor, Tensor] | None = None  # larger tensors, of which key and value are the first positions

    @property
    def length(self) -> int:
        return self.key.size(-2)

    @property
    def end(self) -> int:
        """The next position."""
        return self.start + self.length

    def append(self, later: "Memory") -> "Memory":
        """This memory followed by a later one. Shares its storage: do not use this one afterwards."""
        real = self.real
        if real is not None or later.real is not None:
            real = torch.cat([_real(self), _real(later)], -1)
        if torch.is_grad_enabled():
            key = torch.cat([self.key, later.key], -2)
            value = torch.cat([self.value, later.value], -2)
            return Memory(key, value, real, self.start)
        before = self.length
        new = later.length
        storage = self.reserve(new).storage
        assert storage
        for buffer, added in zip(storage, (later.key, later.value), strict=True):
            buffer.narrow(2, before, new).copy_(added)
        key, value = (buffer.narrow(2, 0, before + new) for buffer in storage)
        return Memory(key, value, real, self.start, storage)

    def reserve(self, new: int) -> "Memory":
        """With storage for `new` more positions: doubled when full, so that appending costs amortised constant time."""
        length = self.length + new
        if self.storage is not None and self.storage[0].size(2) >= length:
            return self
        return self._replace(storage=(_allocate(self.key, 2 * length), _allocate(self.value, 2 * length)))

    def truncate(self, length: int) -> "Memory":
        """Its first `length` positions."""
        return self._replace(
            key=self.key[:, :, :length],
            value=self.value[:, :, :length],
            real=None if self.real is None else self.real[:, :length],
        )

    def keep_last(self, length: int) -> "Memory":
        """Its last `length` positions, which are still counted from the first one ever."""
        dropped = self.length - length
        real = None if self.real is None else self.real[:, dropped:]
        return Memory(self.key[:, :, dropped:], self.value[:, :, dropped:], real, self.start + dropped)

    def select(self, rows: Tensor) -> "Memory":
        """The memories of these rows, in this order."""
        key, value = (tensor.index_select(0, rows) for tensor in self.storage or (self.key, self.value))
        real = None if self.real is None else self.real.index_select(0, rows)
        storage = (key, value) if self.storage else None
        return Memory(key[:, :, : self.length], value[:, :, : self.length], real, self.start, storage)


def _real(memory: Memory) -> Tensor:
    if memory.real is not None:
        return memory.real
    return torch.ones(memory.key.size(0), memory.length, dtype=torch.bool, device=memory.key.device)


def _allocate(x: Tensor, length: int) -> Tensor:
    """A tensor of `length` positions that begins with those of x."""
    buffer = x.new_empty(*x.shape[:2], length, x.size(-1))
    buffer[:, :, : x.size(-2)] = x
    return buffer


class PositionBias(Protocol):
    """Computes a bias from queries and keys: relative positions."""

    def __call__(self, attention: "Attention", query: Tensor, memory: Memory) -> Bias: ...


class Attention(nn.Module):
    """Projects queries, keys and values, scores the keys, and returns the weighted sum of the values."""

    def __init__(
        self,
        query: nn.Module,
        key: nn.Module,
        value: nn.Module,
        output: nn.Module,
        *,
        score: Score = scaled_dot,
        heads: int = 1,
        key_heads: int | None = None,
        position_bias: PositionBias | None = None,
    ):
        """A `position_bias` adds a bias to the scores of self-attention."""
        super().__init__()
        self.query = query
        self.key = key
        self.value = value
        self.output = output
        self.score = score
        self.heads = heads
        self.key_heads = key_heads or heads
        self.position_bias = position_bias
        self.qkv: Callable[[Tensor], Tensor] | None = None  # all three projections in one product, if packed
        self.sizes: tuple[int, ...] = (0, 0, 0)  # widths of queries, keys and values in it

    def remember(self, source: Tensor, real: Tensor | None = None) -> Memory:
        key = _split_heads(self.key(source), self.key_heads)
        value = _split_heads(self.value(source), self.key_heads)
        return Memory(key, value, real)

    def forward(self, x: Tensor, memory: Memory, rule: Rule | None = None, bias: Bias | None = None) -> Tensor:
        """Cross-attention: x attends to a memory."""
        return self._attend(self._query(x, memory), memory, rule, bias)[0].view(*x.shape[:2], -1)

    def forward_with_weights(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Cross-attention by a score that is not a product; also its weights, (rows, heads, queries, length)."""
        context, weights = self._attend(self._query(x, memory), memory, None, None)
        assert weights is not None
        by_row = weights.transpose(1, 2).reshape(*x.shape[:2], self.heads, memory.length).transpose(1, 2)
        return context.view(*x.shape[:2], -1), by_row

    def _query(self, x: Tensor, memory: Memory) -> Tensor:
        by_source = x.reshape(memory.key.size(0), -1, x.size(-1))  # the hypotheses of one source are queries of one row
        return _split_heads(self.query(by_source), self.heads)

    def self_attend(
        self,
        x: Tensor,
        rule: Rule | None = None,
        real: Tensor | None = None,
        past: Memory | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, Memory]:
        """Self-attention over x and the `past` before it; also returns the memory of both.

        `real` marks padding in x. A `rotation` encodes positions by rotating queries and keys (RoPE).
        """
        query, key, value = self.project(x)
        if rotation is not None:
            query = rotation(query)
            key = rotation(key)
        memory = Memory(key, value, real)
        memory = memory if past is None else past.append(memory)
        bias = None if self.position_bias is None else self.position_bias(self, query, memory)
        return self._attend(query, memory, rule, bias)[0], memory

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same x."""
        if self.qkv is None:
            query, key, value = self.query(x), self.key(x), self.value(x)
        else:
            query, key, value = self.qkv(x).split(self.sizes, -1)
        return _split_heads(query, self.heads), _split_heads(key, self.key_heads), _split_heads(value, self.key_heads)

    def _attend(
        self, query: Tensor, memory: Memory, rule: Rule | None, bias: Bias | None
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and the weights where they were computed."""
        if rule is causal and query.size(-2) == 1:  # the last position attends to all
            rule = None
        if memory.real is not None:
            rule = Padding(memory.real, memory.start) & rule
        attend = self.fused if isinstance(self.score, Product) else self._unfused
        context, weights = attend(query, memory, rule, bias)
        if active := recorder():
            key, stored = (memory.key, None) if isinstance(self.score, Product) else (None, weights)
            proof = (memory.value, context) if active.prove else (None, None)
            active.add(AttentionRecord(self.score, query, key, rule, bias, memory.start, memory.length, stored, *proof))
        return self.output(context.transpose(1, 2).flatten(2)), weights

    def _unfused(self, query: Tensor, memory: Memory, rule: Rule | None, bias: Bias | None) -> tuple[Tensor, Tensor]:
        """Any score: all weights are computed."""
        positions, keys = _positions(query, memory)
        scores = self.score(query, memory.key)
        if bias is not None:
            scores = scores + bias.rows(positions, keys).to(scores.dtype)
        weights = weigh(scores, None if rule is None else rule.rows(positions, keys))
        return weights @ memory.value, weights

    def fused(
        self, query: Tensor, memory: Memory, rule: Rule | None = None, bias: Bias | None = None
    ) -> tuple[Tensor, None]:
        """Dot products, by the fused kernel. A rule becomes its causal flag, a key mask, or a mask for each band."""
        assert isinstance(self.score, Product)
        scale = self.score.scale(memory.key.size(-1))
        queries = query.size(-2)
        length = memory.length
        if bias is None and (rule is None or (rule is causal and queries == length)):
            context = scaled_dot_product_attention(query, memory.key, memory.value, scale, causal=rule is causal)
            return context, None
        positions, keys = _positions(query, memory)
        size = queries
        if bias is not None or (rule is not None and rule.by_query):
            size = max(1, BAND // (length * query.size(0) * (1 if bias is None else bias.heads)))
        bands = []
        for band, rows in zip(query.split(size, -2), positions.split(size), strict=True):
            start, end = (0, None) if rule is None else rule.span(int(rows[0]), int(rows[-1]))
            visible = slice(max(0, start - memory.start), None if end is None else max(1, end - memory.start))
            mask = None if rule is None else rule.rows(rows, keys[visible])
            if bias is not None:
                added = bias.rows(rows, keys[visible]).to(query.dtype)
                mask = added if mask is None else added.masked_fill(~mask, -torch.inf)
            key = memory.key[:, :, visible]
            value = memory.value[:, :, visible]
            bands.append(scaled_dot_product_attention(band, key, value, scale, mask))
        return bands[0] if len(bands) == 1 else torch.cat(bands, -2), None


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _positions(query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """The positions of queries and keys; the queries are the last positions of the memory."""
    keys = torch.arange(memory.start, memory.end, device=query.device)
    return memory.end - query.size(-2) + torch.arange(query.size(-2), device=query.device), keys
