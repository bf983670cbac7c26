"""Disentangled attention through the one core is what its authors compute, also in bands, traced, and trained."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import core
from regard.attention.core import Attention, Memory
from regard.attention.disentangled import Disentangled, Distances, Shared, logarithmic
from regard.attention.masks import causal
from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.attention.variants import disentangled, multihead
from tests.models.test_laws import alike

WIDTH, HEADS, LENGTH = 21, 3, 19
KINDS: dict[str, dict[str, Any]] = {
    "each distance": {"reach": 23},
    "reach": {"reach": 5},
    "buckets": {"reach": 23, "buckets": 6},
    "to position": {"reach": 7, "to_content": False},
    "to content": {"reach": 23, "buckets": 6, "to_position": False},
    "shared": {"reach": 23, "buckets": 7, "shared": True},
    "shared, to position": {"reach": 9, "shared": True, "to_content": False},
    "shared, to content": {"reach": 23, "shared": True, "to_position": False},
}


def made(
    reach: int, buckets: int = 0, shared: bool = False, to_position: bool = True, to_content: bool = True
) -> Attention:
    distances = Distances(WIDTH, reach, buckets, nn.LayerNorm(WIDTH), nn.Identity())
    if shared:
        relation = Shared(distances, to_position, to_content)
    else:
        key, query = (nn.Linear(WIDTH, WIDTH) if there else None for there in (to_position, to_content))
        relation = Disentangled(distances, key, query)
    attention = disentangled(WIDTH, HEADS, relation).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention


@pytest.fixture(params=KINDS)
def attention(request) -> Attention:
    return made(**KINDS[request.param])


def spelled_out(attention: Attention, x: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Equation 4, position by position: weights and outputs."""
    relation: Any = attention.position_bias
    query, key, value = attention.project(x)
    vectors = relation.distances.norm(relation.distances.table.weight)
    projections = relation.projections(attention)
    keys, queries = (
        None if each is None else each(vectors).unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in projections
    )
    scores = query @ key.mT
    for i in range(x.size(1)):
        for j in range(x.size(1)):
            row = int(relation.distances.rows(torch.tensor(i - j)))
            if keys is not None:
                scores[:, :, i, j] += (query[:, :, i] * keys[:, row]).sum(-1)
            if queries is not None:
                scores[:, :, i, j] += (key[:, :, j] * queries[:, row]).sum(-1)
    scores = scores / math.sqrt((1 + relation.terms) * query.size(-1))
    if real is not None:
        scores = scores.masked_fill(~real[:, None, None], -math.inf)
    weights = scores.softmax(-1)
    return weights, attention.output((weights @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("band", [1 << 22, 150], ids=["one band", "many bands"])
@torch.no_grad()
def test_it_is_the_papers_equation(attention: Attention, band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "BAND", band)
    monkeypatch.setattr("regard.attention.disentangled.TILE", 1 if band < 200 else 128)
    x, real = torch.randn(2, LENGTH, WIDTH), torch.arange(LENGTH) < torch.tensor([[LENGTH], [11]])
    for mask in (None, real):
        with record(prove=True) as recorder:
            found, _ = attention.self_attend(x, real=mask)
        weights, expected = spelled_out(attention, x, mask)
        alike(found, expected)
        trace = Trace(recorder)
        alike(trace.weights(""), weights[0])
        alike(trace.weights("", head=2, rows=slice(3, 12)), weights[0, 2, 3:12])
        alike(trace.weights("", rows=slice(1, None, 5)), weights[0, :, 1::5])
        alike(*trace.proof(""))


@torch.no_grad()
def test_the_past_is_at_its_distance(attention: Attention) -> None:
    """Step by step, with a memory, relative positions are the same as all at once."""
    x = torch.randn(2, LENGTH, WIDTH)
    whole, _ = attention.self_attend(x, causal)
    first, memory = attention.self_attend(x[:, :7], causal)
    parts: list[Tensor] = [first]
    for part in (x[:, 7:8], x[:, 8:15], x[:, 15:]):
        found, memory = attention.self_attend(part, causal, past=memory)
        parts.append(found)
    alike(torch.cat(parts, 1), whole)
    short = memory.keep_last(4)  # the others are dropped; the rest keep their positions
    extra = torch.randn(2, 1, WIDTH)
    later, grown = attention.self_attend(extra, causal, past=short)
    assert isinstance(grown, Memory) and grown.start == LENGTH - 4
    again, _ = attention.self_attend(torch.cat([x[:, -4:], extra], 1), causal)
    alike(later, again[:, -1:])


@pytest.mark.parametrize(("buckets", "reach"), [(256, 512), (32, 128), (8, 41), (11, 41), (6, 23), (64, 2048)])
def test_buckets_are_those_of_the_reference(buckets: int, reach: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-3 * reach, 3 * reach + 1)
    expected = make_log_bucket_position(distances, buckets, reach).long()
    found = logarithmic(distances, buckets, reach)
    assert torch.equal(found, expected)
    assert (found.diff() >= 0).all()  # never nearer for being farther
    near = distances.abs() <= buckets // 2
    assert torch.equal(found[near], distances[near])


def reference(version: int, terms: list[str], **fields: Any) -> tuple[Any, Attention, Tensor]:
    """transformers' own layer, the same weights in our attention, and the vectors of the distances."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        from transformers.models.deberta import modeling_deberta as one
        from transformers.models.deberta_v2 import modeling_deberta_v2 as two
    kind = transformers.DebertaConfig if version == 1 else transformers.DebertaV2Config
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "max_position_embeddings": 29}
    config = kind(**sizes, relative_attention=True, pos_att_type=terms, **fields)
    theirs: Any = (one if version == 1 else two).DisentangledSelfAttention(config).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    reach, buckets = getattr(config, "max_relative_positions", -1), getattr(config, "position_buckets", -1)
    reach = 29 if reach < 1 else reach
    distances = Distances(WIDTH, reach, max(buckets, 0), nn.Identity(), nn.Identity())
    c2p, p2c, shared = "c2p" in terms, "p2c" in terms, getattr(config, "share_att_key", False)
    if version == 1:
        key, query = getattr(theirs, "pos_proj", None), getattr(theirs, "pos_q_proj", None)
    else:
        key, query = getattr(theirs, "pos_key_proj", None), getattr(theirs, "pos_query_proj", None)
    relation = Shared(distances, c2p, p2c) if shared else Disentangled(distances, key, query)
    ours: Any = disentangled(WIDTH, HEADS, relation, key_bias=version == 2).eval()
    ours.output = nn.Identity()
    if version == 1:
        packed = theirs.in_proj.weight.unflatten(0, (HEADS, 3, -1))
        for number, part in enumerate((ours.query, ours.key, ours.value)):
            part.weight = nn.Parameter(packed[:, number].flatten(0, 1))
        ours.query.bias, ours.value.bias = theirs.q_bias, theirs.v_bias
    else:
        ours.query, ours.key, ours.value = theirs.query_proj, theirs.key_proj, theirs.value_proj
    return theirs, ours, distances.table.weight


LAYERS: dict[str, tuple[int, list[str], dict[str, Any]]] = {
    "v1": (1, ["c2p", "p2c"], {}),
    "v1, reach": (1, ["p2c", "c2p"], {"max_relative_positions": 6}),
    "v1, c2p": (1, ["c2p"], {}),
    "v1, p2c": (1, ["p2c"], {}),
    "v2": (2, ["c2p", "p2c"], {"position_buckets": 8}),
    "v2, shared": (2, ["c2p", "p2c"], {"position_buckets": 8, "share_att_key": True}),
    "v2, no buckets": (2, ["p2c"], {"max_relative_positions": 7}),
    "v2, shared, c2p": (2, ["c2p"], {"share_att_key": True}),
}


@pytest.mark.parametrize(("version", "terms", "fields"), LAYERS.values(), ids=LAYERS)
@torch.no_grad()
def test_a_layer_of_transformers_has_equal_weights_and_outputs(
    version: int, terms: list[str], fields: dict[str, Any]
) -> None:
    theirs, ours, vectors = reference(version, terms, **fields)
    x, lengths = torch.randn(2, LENGTH, WIDTH), torch.tensor([LENGTH, 8])
    real = torch.arange(LENGTH) < lengths[:, None]
    mask = (real[:, None, :, None] & real[:, None, None]).long()
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    relative = distance if version == 1 else None
    said, seen = theirs(x, mask, True, relative_pos=relative, rel_embeddings=vectors)
    with record() as recorder:
        found, _ = ours.self_attend(x, real=real)
    alike(found[real], said[real])
    alike(Trace(recorder).weights(""), seen[0])


def test_gradients_are_those_of_the_equation(attention: Attention) -> None:
    """Also of the table's vectors, whose rows count as often as their distances occur."""
    attention = attention.double()
    x, goal = torch.randn(2, 2, LENGTH, WIDTH, dtype=torch.float64)
    parameters = list(attention.parameters())
    ours = torch.autograd.grad((attention.self_attend(x)[0] * goal).sum(), parameters)
    expected = torch.autograd.grad((spelled_out(attention, x)[1] * goal).sum(), parameters)
    for one, other in zip(ours, expected, strict=True):
        alike(one, other)


@torch.no_grad()
def test_a_long_text_is_computed_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor has all heads' terms of all pairs; and the trace of a long row is exact."""
    length, largest = 700, 0
    monkeypatch.setattr(core, "BAND", 1 << 16)
    attention, picked = made(reach=64, buckets=16), torch.Tensor.index_select

    def watched(tensor: Tensor, *where: Any) -> Tensor:
        nonlocal largest
        found = picked(tensor, *where)
        largest = max(largest, found.numel(), tensor.numel())
        return found

    monkeypatch.setattr(torch.Tensor, "index_select", watched)
    with record(prove=True) as recorder:
        attention.self_attend(torch.randn(1, length, WIDTH))
    assert 0 < largest <= 1 << 16 < HEADS * length**2
    alike(*Trace(recorder).proof(""))


@torch.no_grad()
def test_a_trace_of_one_head_makes_the_terms_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one text too, where several were read at once."""
    attention = made(reach=23)
    with record() as recorder:
        attention.self_attend(torch.randn(5, LENGTH, WIDTH))
    heads, picked = [], torch.Tensor.index_select
    monkeypatch.setattr(
        torch.Tensor, "index_select", lambda tensor, *where: (heads.append(len(tensor)), picked(tensor, *where))[1]
    )
    found = Trace(recorder, batch_index=3).weights("", head=1)
    assert heads == [1, 1]
    alike(found, recorder.records[""][0].weights()[3, 1])


def test_attention_without_a_relation_makes_no_bias() -> None:
    """What has none pays nothing for it."""
    attention = multihead(WIDTH, HEADS)
    with record() as recorder:
        attention.self_attend(torch.randn(2, LENGTH, WIDTH))
    assert attention.position_bias is None
    assert Trace(recorder).records[""][0].bias is None
