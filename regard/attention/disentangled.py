"""Disentangled attention: separate vectors for content and relative position. He et al. 2021, equation 4.

    score(i, j) = scale · ( qᵢ · kⱼ  +  qᵢ · K[δ]  +  kⱼ · Q[δ] )        δ = the table row of distance i − j
                            content    content to     position to
                                       position       content

K and Q are the projected rows of the table. Both terms are a bias, computed tile by tile: each query and each key of a
tile is multiplied by the rows of the tile's distances, and one index, the same for all heads, selects the dot products.

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

TILE = 128  # the smallest number of keys in a tile


class Distances(nn.Module):
    """A vector for each distance i − j, or for each bucket of them; row `span` is that of distance 0."""

    def __init__(self, width: int, reach: int, buckets: int, norm: nn.Module, dropout: nn.Module):
        """Distances are clipped to `reach`. With `buckets`, large ones share rows on a logarithmic scale."""
        super().__init__()
        self.reach = reach
        self.buckets = buckets
        self.span = buckets or reach
        self.table = nn.Embedding(2 * self.span, width)
        self.norm = norm
        self.dropout = dropout

    def rows(self, distances: Tensor) -> Tensor:
        """The row of each distance."""
        offsets = logarithmic(distances, self.buckets, self.reach) if self.buckets else distances
        return (offsets + self.span).clamp(0, 2 * self.span - 1)

    def forward(self, first: int, last: int) -> Tensor:
        """The vectors of rows first … last."""
        return self.dropout(self.norm(self.table.weight[first : last + 1]))


def logarithmic(distances: Tensor, buckets: int, reach: int) -> Tensor:
    """Log buckets: distances up to half the buckets are exact, larger ones in growing steps up to `reach`."""
    half = buckets // 2
    far = distances.abs().clamp(min=half)
    share = torch.log(far / half) / torch.log(torch.tensor((reach - 1) / half, device=distances.device))
    steps = (torch.ceil(share * (half - 1)) + half).long()
    return torch.where(distances.abs() <= half, distances, steps * distances.sign())


class Disentangled(nn.Module):
    """The position bias of one attention layer: shared distance vectors, with projections of its own."""

    def __init__(self, distances: Distances, key: nn.Module | None, query: nn.Module | None):
        """`key` projects for the content-to-position term, `query` for position-to-content; None omits the term."""
        super().__init__()
        self.distances = distances
        self.key = key
        self.query = query
        self.terms = (key is not None) + (query is not None)

    def projections(self, attention: Attention) -> tuple[nn.Module | None, nn.Module | None]:
        """The projections of the distance vectors: as keys, as queries."""
        return self.key, self.query

    def forward(self, attention: Attention, query: Tensor, memory: Memory) -> Bias:
        first = memory.end - query.size(-2)
        extremes = torch.tensor([first + 1 - memory.end, memory.end - 1 - memory.start], device=query.device)
        low, high = self.distances.rows(extremes).tolist()
        vectors = self.distances(low, high)
        scale = product(self.terms).scale(query.size(-1))
        keys, queries = (
            None if project is None else (project(vectors) * scale).unflatten(-1, (attention.heads, -1)).transpose(0, 1)
            for project in self.projections(attention)
        )
        return Disentanglement(query, memory.key, keys, queries, self.distances, first, memory.start, low)


class Shared(Disentangled):
    """Distances are projected by the weights of the contents (`share_att_key`, DeBERTa v2 and v3)."""

    def __init__(self, distances: Distances, c2p: bool, p2c: bool):
        super().__init__(distances, None, None)
        self.c2p = c2p
        self.p2c = p2c
        self.terms = c2p + p2c

    def projections(self, attention: Attention) -> tuple[nn.Module | None, nn.Module | None]:
        return attention.key if self.c2p else None, attention.query if self.p2c else None


def product(terms: int) -> Product:
    """The dot product, scaled by 1 / √((1 + terms) · width) for `terms` further terms."""
    return Product(lambda width: ((1 + terms) * width) ** -0.5)


@dataclass(frozen=True, eq=False)
class Disentanglement(Bias):
    """Both terms, for queries from position `first` and keys from position `start`; `low` is the first row of K."""

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
        selected = replace(
            self,
            query=self.query[texts, heads],
            key=self.key[texts, heads],
            position_key=None if self.position_key is None else self.position_key[heads],
            position_query=None if self.position_query is None else self.position_query[heads],
        )
        return selected.rows(query, key)

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        tiles = [self._tile(query, keys) for keys in key.split(max(TILE, len(query)))]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles, -1)

    def _tile(self, query: Tensor, key: Tensor) -> Tensor:
        """(batch, heads, queries, keys), from products with the rows of the tile's distances only."""
        nearest = int(query[0] - key[-1])
        farthest = int(query[-1] - key[0])
        rows = self.distances.rows(torch.arange(nearest, farthest + 1, device=query.device))
        low = int(rows[0])
        count = int(rows[-1]) - low + 1
        index = (rows - low).int()[query[:, None] - key - nearest]  # int32: half the bytes to read for each head
        tile = slice(low - self.low, low - self.low + count)
        terms = []
        if self.position_key is not None:
            products = _at(self.query, query - self.first) @ self.position_key[:, tile].mT
            terms.append(_gather(products, index + _offsets(count, query)[:, None]))
        if self.position_query is not None:
            products = _at(self.key, key - self.start) @ self.position_query[:, tile].mT
            terms.append(_gather(products, index + _offsets(count, key)))
        return terms[0] if len(terms) == 1 else terms[0].add_(terms[1])


def _at(x: Tensor, positions: Tensor) -> Tensor:
    """The vectors at these positions; a view if they are contiguous."""
    first = int(positions[0])
    last = int(positions[-1])
    return x[:, :, first : last + 1] if last - first + 1 == len(positions) else x[:, :, positions]


def _offsets(count: int, positions: Tensor) -> Tensor:
    """The offset of each position's row in a flattened table with `count` columns."""
    return count * torch.arange(len(positions), dtype=torch.int32, device=positions.device)


def _gather(products: Tensor, index: Tensor) -> Tensor:
    """The elements at `index` of the flattened table of each head, (batch, heads, …)."""
    batch, heads = products.shape[:2]
    return products.reshape(batch * heads, -1).index_select(1, index.flatten()).view(batch, heads, *index.shape)
