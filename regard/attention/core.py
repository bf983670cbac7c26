"""Attention: a query looks into a memory of keys and values. Every model attends through this file.

Shapes, throughout:
    x        (rows, queries, width)             rows = batch, or batch × hypotheses of one source
    query    (batch, heads, queries, width)
    key      (batch, heads, length,  width)     fewer heads where several queries' heads share a key's
    real     (batch, length)                    False where padded
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.attention.masks import Bias, Padding, Rule, causal
from regard.attention.positions import Rotation
from regard.attention.scores import Product, Score, scaled_dot, weigh
from regard.attention.trace import AttentionRecord, recorder, stores_weights
from regard.kernels.ops import scaled_dot_product_attention

BAND = 1 << 22  # booleans, or terms of a bias, made at a time where they must be spelled out


class Memory(NamedTuple):
    """What can be attended to: an encoded source, or a decoder's own past."""

    key: Tensor
    value: Tensor
    real: Tensor | None = None
    start: int = 0  # how many places were forgotten before the first key
    room: tuple[Tensor, Tensor] | None = None  # larger tensors that begin with keys and values: what comes fits behind

    @property
    def length(self) -> int:
        return self.key.size(-2)

    @property
    def end(self) -> int:
        """The place that comes next."""
        return self.start + self.length

    def append(self, later: "Memory") -> "Memory":
        """This memory and what came later. This one may not be used afterwards."""
        real = self.real
        if real is not None or later.real is not None:
            real = torch.cat([_real(self), _real(later)], -1)
        if torch.is_grad_enabled():
            key, value = torch.cat([self.key, later.key], -2), torch.cat([self.value, later.value], -2)
            return Memory(key, value, real, self.start)
        before, new = self.length, later.length
        room = self.reserve(new).room
        assert room
        for whole, part in zip(room, (later.key, later.value), strict=True):
            whole.narrow(2, before, new).copy_(part)
        key, value = (whole.narrow(2, 0, before + new) for whole in room)
        return Memory(key, value, real, self.start, room)

    def reserve(self, new: int) -> "Memory":
        """The same with room for that many places: doubled where full, so that each is copied once or twice in all."""
        length = self.length + new
        if self.room is not None and self.room[0].size(2) >= length:
            return self
        return self._replace(room=(_roomy(self.key, 2 * length), _roomy(self.value, 2 * length)))

    def truncate(self, length: int) -> "Memory":
        """Its first places, as if the others had never come."""
        return self._replace(
            key=self.key[:, :, :length],
            value=self.value[:, :, :length],
            real=None if self.real is None else self.real[:, :length],
        )

    def keep_last(self, length: int) -> "Memory":
        """Its last places; the others are forgotten, and keep their numbers."""
        gone = self.length - length
        real = None if self.real is None else self.real[:, gone:]
        return Memory(self.key[:, :, gone:], self.value[:, :, gone:], real, self.start + gone)

    def select(self, rows: Tensor) -> "Memory":
        """The memories of some rows, in this order."""
        key, value = (part.index_select(0, rows) for part in self.room or (self.key, self.value))
        real = None if self.real is None else self.real.index_select(0, rows)
        room = (key, value) if self.room else None
        return Memory(key[:, :, : self.length], value[:, :, : self.length], real, self.start, room)


def _real(memory: Memory) -> Tensor:
    if memory.real is not None:
        return memory.real
    return torch.ones(memory.key.size(0), memory.length, dtype=torch.bool, device=memory.key.device)


def _roomy(part: Tensor, length: int) -> Tensor:
    """A tensor of that many places that begins with these."""
    whole = part.new_empty(*part.shape[:2], length, part.size(-1))
    whole[:, :, : part.size(-2)] = part
    return whole


class Relation(Protocol):
    """Makes a bias from what an attention projected: how each place stands to each other one."""

    def __call__(self, attention: "Attention", query: Tensor, memory: Memory) -> Bias: ...


class Attention(nn.Module):
    """Queries, keys and values are projected, `score` compares them, and the values are mixed by weight."""

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
        relation: Relation | None = None,
    ):
        """A `relation` adds to the scores where it looks at itself."""
        super().__init__()
        self.query, self.key, self.value, self.output = query, key, value, output
        self.score, self.heads, self.key_heads, self.relation = score, heads, key_heads or heads, relation
        self.qkv: Callable[[Tensor], Tensor] | None = None  # all three projections in one product, where packed,
        self.sizes: tuple[int, ...] = (0, 0, 0)  # of queries, keys and values in it

    def remember(self, source: Tensor, real: Tensor | None = None) -> Memory:
        return Memory(_split(self.key(source), self.key_heads), _split(self.value(source), self.key_heads), real)

    def forward(self, x: Tensor, memory: Memory, rule: Rule | None = None, bias: Bias | None = None) -> Tensor:
        """x looks into a memory."""
        together = x.reshape(memory.key.size(0), -1, x.size(-1))  # hypotheses of one source look side by side
        return self._look(_split(self.query(together), self.heads), memory, rule, bias).view(*x.shape[:2], -1)

    def self_attend(
        self,
        x: Tensor,
        rule: Rule | None = None,
        real: Tensor | None = None,
        past: Memory | None = None,
        rotation: Rotation | None = None,
    ) -> tuple[Tensor, Memory]:
        """x looks at itself and at what came before it; also gives the memory of all that.

        `real` marks padding in x. A `turn` tells places by turning queries and keys.
        """
        query, key, value = self.project(x)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        memory = Memory(key, value, real)
        memory = memory if past is None else past.append(memory)
        bias = None if self.relation is None else self.relation(self, query, memory)
        return self._look(query, memory, rule, bias), memory

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same x."""
        if self.qkv is None:
            query, key, value = self.query(x), self.key(x), self.value(x)
        else:
            query, key, value = self.qkv(x).split(self.sizes, -1)
        return _split(query, self.heads), _split(key, self.key_heads), _split(value, self.key_heads)

    def _look(self, query: Tensor, memory: Memory, rule: Rule | None, bias: Bias | None) -> Tensor:
        if rule is causal and query.size(-2) == 1:  # the last place sees all there is
            rule = None
        if memory.real is not None:
            rule = Padding(memory.real, memory.start) & rule
        mix = self.fused if isinstance(self.score, Product) else self._plain
        context, weights = mix(query, memory, rule, bias)
        if active := recorder():
            key, stored = (None, weights) if stores_weights(self.score) else (memory.key, None)
            proof = (memory.value, context) if active.prove else (None, None)
            active.add(AttentionRecord(self.score, query, key, rule, bias, memory.start, memory.length, stored, *proof))
        return self.output(context.transpose(1, 2).flatten(2))

    def _plain(self, query: Tensor, memory: Memory, rule: Rule | None, bias: Bias | None) -> tuple[Tensor, Tensor]:
        """Any score: all weights are made."""
        places, keys = _places(query, memory)
        scores = self.score(query, memory.key)
        if bias is not None:
            scores = scores + bias.rows(places, keys).to(scores.dtype)
        weights = weigh(scores, None if rule is None else rule.rows(places, keys))
        return weights @ memory.value, weights

    def fused(
        self, query: Tensor, memory: Memory, rule: Rule | None = None, bias: Bias | None = None
    ) -> tuple[Tensor, None]:
        """Products: no weights are made. A rule goes down as the kernel's own flag, as a key mask, or in bands."""
        assert isinstance(self.score, Product)
        scale, queries, length = self.score.scale(memory.key.size(-1)), query.size(-2), memory.length
        if bias is None and (rule is None or (rule is causal and queries == length)):
            context = scaled_dot_product_attention(query, memory.key, memory.value, scale, causal=rule is causal)
            return context, None
        places, keys = _places(query, memory)
        size = queries
        if bias is not None or (rule is not None and rule.by_query):
            size = max(1, BAND // (length * query.size(0) * (1 if bias is None else bias.heads)))
        bands = []
        for band, rows in zip(query.split(size, -2), places.split(size), strict=True):
            start, end = (0, None) if rule is None else rule.span(int(rows[0]), int(rows[-1]))
            seen = slice(max(0, start - memory.start), None if end is None else max(1, end - memory.start))
            mask = None if rule is None else rule.rows(rows, keys[seen])
            if bias is not None:
                added = bias.rows(rows, keys[seen]).to(query.dtype)
                mask = added if mask is None else added.masked_fill(~mask, -torch.inf)
            key, value = memory.key[:, :, seen], memory.value[:, :, seen]
            bands.append(scaled_dot_product_attention(band, key, value, scale, mask))
        return bands[0] if len(bands) == 1 else torch.cat(bands, -2), None


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _places(query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Where the queries and the keys stand: queries are the memory's last places."""
    keys = torch.arange(memory.start, memory.end, device=query.device)
    return memory.end - query.size(-2) + torch.arange(query.size(-2), device=query.device), keys
