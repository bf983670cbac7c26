"""Disentangled attention: what a token says and where it stands are compared apart. He et al. 2021, equation 4.

    score(i, j) = scale · ( qᵢ · kⱼ  +  qᵢ · K[δ]  +  kⱼ · Q[δ] )        δ = the row of a table for the distance i − j
                            content    content to     position to
                                       position       content

K and Q are the table's rows, projected. Both terms go to the one core as a bias, made tile by tile: each query is
compared with the rows that the tile's distances have, each key likewise, and one index, the same for all heads, picks.

Shapes, throughout:
    query     (batch, heads, queries, width)
    key       (batch, heads, length,  width)
    K, Q      (heads, rows, width)
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.attention.core import Attention, Memory
from regard.attention.masks import Bias
from regard.attention.scores import Product

TILE = 128  # keys at least that a tile has, however few queries are asked about


class Distances(nn.Module):
    """A vector for each distance i − j, or for each bucket of them; row `span` is that of distance 0."""

    def __init__(self, width: int, reach: int, buckets: int, norm: nn.Module, dropout: nn.Module):
        """All from `reach` on are one. With `buckets`, those beyond half of them share rows, the more the farther."""
        super().__init__()
        self.reach, self.buckets, self.span = reach, buckets, buckets or reach
        self.table, self.norm, self.dropout = nn.Embedding(2 * self.span, width), norm, dropout

    def rows(self, distances: Tensor) -> Tensor:
        """The row of each distance."""
        found = logarithmic(distances, self.buckets, self.reach) if self.buckets else distances
        return (found + self.span).clamp(0, 2 * self.span - 1)

    def forward(self, first: int, last: int) -> Tensor:
        """The vectors of rows first … last."""
        return self.dropout(self.norm(self.table.weight[first : last + 1]))


def logarithmic(distances: Tensor, buckets: int, reach: int) -> Tensor:
    """Distances up to half the buckets as they are; farther ones in steps that grow with them, up to `reach`."""
    half = buckets // 2
    far = distances.abs().clamp(min=half)
    share = torch.log(far / half) / torch.log(torch.tensor((reach - 1) / half, device=distances.device))
    steps = (torch.ceil(share * (half - 1)) + half).long()
    return torch.where(distances.abs() <= half, distances, steps * distances.sign())


class Disentangled(nn.Module):
    """What one attention makes of distances that it has in common with others, by projections of its own."""

    def __init__(self, distances: Distances, key: nn.Module | None, query: nn.Module | None):
        """Without `key` no content is compared with positions, without `query` no position with contents."""
        super().__init__()
        self.distances, self.key, self.query = distances, key, query
        self.terms = (key is not None) + (query is not None)

    def projections(self, attention: Attention) -> tuple[nn.Module | None, nn.Module | None]:
        """Those of the positions: as keys, as queries."""
        return self.key, self.query

    def forward(self, attention: Attention, query: Tensor, memory: Memory) -> Bias:
        first = memory.end - query.size(-2)
        ends = torch.tensor([first + 1 - memory.end, memory.end - 1 - memory.start], device=query.device)
        low, high = self.distances.rows(ends).tolist()
        vectors, scale = self.distances(low, high), product(self.terms).scale(query.size(-1))
        keys, queries = (
            None if project is None else (project(vectors) * scale).unflatten(-1, (attention.heads, -1)).transpose(0, 1)
            for project in self.projections(attention)
        )
        return Disentanglement(query, memory.key, keys, queries, self.distances, first, memory.start, low)


class Shared(Disentangled):
    """Positions are projected as contents are, by the same weights."""

    def __init__(self, distances: Distances, to_position: bool, to_content: bool):
        super().__init__(distances, None, None)
        self.to_position, self.to_content, self.terms = to_position, to_content, to_position + to_content

    def projections(self, attention: Attention) -> tuple[nn.Module | None, nn.Module | None]:
        return attention.key if self.to_position else None, attention.query if self.to_content else None


def product(terms: int) -> Product:
    """The dot product, scaled for so many terms beside it: 1 / √((1 + terms) · width)."""
    return Product(lambda width: ((1 + terms) * width) ** -0.5)


@dataclass(frozen=True, eq=False)
class Disentanglement(Bias):
    """Both terms of one look. The first query stands at `first`, the first key at `start`, `low` is K's first row."""

    query: Tensor
    key: Tensor
    position_key: Tensor | None
    position_query: Tensor | None
    distances: Distances
    first: int
    start: int
    low: int

    @property
    def heads(self) -> int:  # type: ignore[override]
        return self.query.size(1)

    def rows_of(self, texts: slice, heads: slice, query: Tensor, key: Tensor) -> Tensor:
        keys, queries = (None if each is None else each[heads] for each in (self.position_key, self.position_query))
        some = replace(
            self, query=self.query[texts, heads], key=self.key[texts, heads], position_key=keys, position_query=queries
        )
        return some.rows(query, key)

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        tiles = [self._tile(query, some) for some in key.split(max(TILE, len(query)))]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles, -1)

    def _tile(self, query: Tensor, key: Tensor) -> Tensor:
        """(batch, heads, queries, keys), from products with no more rows than their distances have."""
        nearest, farthest = int(query[0] - key[-1]), int(query[-1] - key[0])
        rows = self.distances.rows(torch.arange(nearest, farthest + 1, device=query.device))
        low, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        picked = (rows - low).int()[query[:, None] - key - nearest]  # half as many bytes to read for each head
        there = slice(low - self.low, low - self.low + count)
        terms = []
        if self.position_key is not None:
            compared = _at(self.query, query - self.first) @ self.position_key[:, there].mT
            terms.append(_pick(compared, picked + _steps(count, query)[:, None]))
        if self.position_query is not None:
            compared = _at(self.key, key - self.start) @ self.position_query[:, there].mT
            terms.append(_pick(compared, picked + _steps(count, key)))
        return terms[0] if len(terms) == 1 else terms[0].add_(terms[1])


def _at(x: Tensor, places: Tensor) -> Tensor:
    """What stands at these places, not copied where they follow each other."""
    first, last = int(places[0]), int(places[-1])
    return x[:, :, first : last + 1] if last - first + 1 == len(places) else x[:, :, places]


def _steps(count: int, places: Tensor) -> Tensor:
    """Where each place's row of a table begins."""
    return count * torch.arange(len(places), dtype=torch.int32, device=places.device)


def _pick(compared: Tensor, places: Tensor) -> Tensor:
    """What stands at these places of each head's table (batch, heads, …), read as one row."""
    batch, heads = compared.shape[:2]
    return compared.reshape(batch * heads, -1).index_select(1, places.flatten()).view(batch, heads, *places.shape)
