"""Published attention mechanisms, each a constructor of `Attention`.

`width` is the width of queries, `source` that of the memory, `hidden` that of the score.
"""

from collections.abc import Callable

from torch import nn

from regard.attention.core import Attention, PositionBias
from regard.attention.disentangled import Disentangled, product
from regard.attention.scores import Additive, LocationAware, QueryProjection, Score, dot, scaled_dot, uniform


def multihead(
    width: int,
    heads: int,
    source: int | None = None,
    score: Score = scaled_dot,
    bias: bool = True,
    output_bias: bool | None = None,
    position_bias: PositionBias | None = None,
) -> Attention:
    """Multi-head attention. Vaswani et al. 2017, section 3.2.2. `bias` is also that of the output, unless given."""
    source = source or width
    query, key, value = (nn.Linear(size, width, bias=bias) for size in (width, source, source))
    output = nn.Linear(width, width, bias=bias if output_bias is None else output_bias)
    return Attention(query, key, value, output, score=score, heads=heads, position_bias=position_bias)


def grouped(width: int, heads: int, key_heads: int, head_width: int, bias: bool = False) -> Attention:
    """Grouped-query attention: query heads share key heads, for a smaller KV cache. Ainslie et al. 2023."""
    inner = heads * head_width
    shared = key_heads * head_width
    sizes = (width, inner), (width, shared), (width, shared), (inner, width)
    return Attention(*(nn.Linear(*size, bias=bias) for size in sizes), heads=heads, key_heads=key_heads)


def disentangled(width: int, heads: int, position_bias: Disentangled | None, key_bias: bool = True) -> Attention:
    """Content scores, plus those of relative positions. He et al. 2021, section 3.1."""
    query, key, value, output = (nn.Linear(width, width, bias=bias) for bias in (True, key_bias, True, True))
    score = product(position_bias.terms if position_bias else 0)
    return Attention(query, key, value, output, score=score, heads=heads, position_bias=position_bias)


def bahdanau(width: int, source: int, hidden: int) -> Attention:
    """v · tanh(W q + U k). Bahdanau et al. 2015, A.1.2."""
    projections = nn.Linear(width, hidden, bias=False), nn.Linear(source, hidden, bias=False)
    return Attention(*projections, nn.Identity(), nn.Identity(), score=Additive(hidden))


def location_aware(width: int, source: int, hidden: int, filters: int = 10, kernel: int = 31) -> Attention:
    """v · tanh(W q + V k + U f), f from the previous weights, which follow the query. Chorowski et al. 2015, 2.1."""
    projections = QueryProjection(width, hidden, bias=False), nn.Linear(source, hidden, bias=False)
    return Attention(*projections, nn.Identity(), nn.Identity(), score=LocationAware(hidden, filters, kernel))


def luong_dot(width: int, source: int, hidden: int) -> Attention:
    """q · k, without projections. Luong et al. 2015, equation 8, "dot"."""
    return Attention(nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity(), score=dot)


def scaled(width: int, source: int, hidden: int) -> Attention:
    """q · k / √d, without projections."""
    return Attention(nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity(), score=scaled_dot)


def bilinear(width: int, source: int, hidden: int) -> Attention:
    """q · W k. Luong et al. 2015, equation 8, "general"."""
    key = nn.Linear(source, width, bias=False)
    return Attention(nn.Identity(), key, nn.Identity(), nn.Identity(), score=dot)


def low_rank(width: int, source: int, hidden: int) -> Attention:
    """q · (Uᵀ V) k: bilinear, with a matrix of low rank."""
    projections = nn.Linear(width, hidden, bias=False), nn.Linear(source, hidden, bias=False)
    return Attention(*projections, nn.Identity(), nn.Identity(), score=dot)


def mlp(width: int, source: int, hidden: int) -> Attention:
    """Scaled dot product of queries, keys and values that are projected by an MLP with one hidden layer."""

    def project(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    return Attention(project(width, hidden), project(source, hidden), project(source, source), nn.Identity())


def mean(width: int, source: int, hidden: int) -> Attention:
    """Equal weights: mean pooling."""
    return Attention(nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity(), score=uniform)


SCORES: dict[str, Callable[[int, int, int], Attention]] = {
    "dot": luong_dot,
    "scaled_dot": scaled,
    "bilinear": bilinear,
    "low_rank": low_rank,
    "additive": bahdanau,
    "mlp": mlp,
    "uniform": mean,
}
"""Single-head attention by the name of its score in recipes. The context has the width `source`."""

NEED_EQUAL_WIDTHS = frozenset({"dot", "scaled_dot"})
