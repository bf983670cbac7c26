"""Attention: a query looks into a memory of keys and values. Every model attends through this file.

Shapes, throughout:
    x        (rows, queries, width)             rows = batch, or batch × hypotheses of one source
    query    (batch, heads, queries, width)
    key      (batch, heads, length,  width)
    real     (batch, length)                    False where padded
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Bias, Padding, Rule, causal
from regard.attention.scores import Product, Score, scaled_dot, weigh
from regard.attention.trace import Look, keep, recorder

BAND = 1 << 22  # booleans made at a time where a rule must be spelled out


class Memory(NamedTuple):
    """What can be attended to: an encoded source, or a decoder's own past."""

    key: Tensor
    value: Tensor
    real: Tensor | None = None
    start: int = 0  # how many places were forgotten before the first key

    @property
    def length(self) -> int:
        return self.key.size(-2)

    @property
    def end(self) -> int:
        """The place that comes next."""
        return self.start + self.length

    def extended(self, later: "Memory") -> "Memory":
        """This memory and what came later. This one may not be used afterwards."""
        real = self.real
        if real is not None or later.real is not None:
            real = torch.cat([_real(self), _real(later)], -1)
        return Memory(torch.cat([self.key, later.key], -2), torch.cat([self.value, later.value], -2), real, self.start)


def _real(memory: Memory) -> Tensor:
    if memory.real is not None:
        return memory.real
    return torch.ones(memory.key.size(0), memory.length, dtype=torch.bool, device=memory.key.device)


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
    ):
        super().__init__()
        self.query, self.key, self.value, self.output = query, key, value, output
        self.score, self.heads = score, heads

    def remember(self, source: Tensor, real: Tensor | None = None) -> Memory:
        return Memory(self._split(self.key(source)), self._split(self.value(source)), real)

    def forward(self, x: Tensor, memory: Memory, rule: Rule | None = None, bias: Bias | None = None) -> Tensor:
        together = x.reshape(memory.key.size(0), -1, x.size(-1))  # hypotheses of one source look side by side
        query = self._split(self.query(together))
        if memory.real is not None:
            rule = Padding(memory.real, memory.start) & rule
        mix = self._fused if isinstance(self.score, Product) else self._plain
        context, weights = mix(query, memory, rule, bias)
        if watching := recorder():
            key, kept = (None, weights) if keep(self.score) else (memory.key, None)
            proof = (memory.value, context) if watching.prove else (None, None)
            watching.add(Look(self.score, query, key, rule, bias, memory.start, memory.length, kept, *proof))
        return self.output(context.transpose(1, 2).flatten(2)).view(*x.shape[:2], -1)

    def _plain(self, query: Tensor, memory: Memory, rule: Rule | None, bias: Bias | None) -> tuple[Tensor, Tensor]:
        """Any score: all weights are made."""
        places, keys = _places(query, memory)
        scores = self.score(query, memory.key)
        if bias is not None:
            scores = scores + bias.rows(places, keys).to(scores.dtype)
        weights = weigh(scores, None if rule is None else rule.rows(places, keys))
        return weights @ memory.value, weights

    def _fused(self, query: Tensor, memory: Memory, rule: Rule | None, bias: Bias | None) -> tuple[Tensor, None]:
        """Products: no weights are made. A rule goes down as the kernel's own flag, as a key mask, or in bands."""
        assert isinstance(self.score, Product)
        scale = self.score.scale(memory.key.size(-1))
        queries, length = query.size(-2), memory.length
        if rule is causal and queries == 1 and bias is None:  # the last place sees all there is
            rule = None
        if bias is None and (rule is None or (rule is causal and queries == length)):
            flag = rule is causal
            return F.scaled_dot_product_attention(query, memory.key, memory.value, is_causal=flag, scale=scale), None
        places, keys = _places(query, memory)
        size = (
            max(1, BAND // (length * query.size(0)))
            if bias is not None or (rule is not None and rule.by_query)
            else queries
        )
        bands = []
        for band, rows in zip(query.split(size, -2), places.split(size), strict=True):
            start, end = (0, None) if rule is None else rule.span(int(rows[0]), int(rows[-1]))
            seen = slice(max(0, start - memory.start), None if end is None else max(1, end - memory.start))
            mask = None if rule is None else rule.rows(rows, keys[seen])
            if bias is not None:
                added = bias.rows(rows, keys[seen]).to(query.dtype)
                mask = added if mask is None else added.masked_fill(~mask, -torch.inf)
            key, value = memory.key[:, :, seen], memory.value[:, :, seen]
            bands.append(F.scaled_dot_product_attention(band, key, value, attn_mask=mask, scale=scale))
        return bands[0] if len(bands) == 1 else torch.cat(bands, -2), None

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _places(query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Where the queries and the keys stand: queries are the memory's last places."""
    keys = torch.arange(memory.start, memory.end, device=query.device)
    return memory.end - query.size(-2) + torch.arange(query.size(-2), device=query.device), keys
