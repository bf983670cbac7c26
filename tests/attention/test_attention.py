"""The core's laws: masks, bands, zeros, traces. Sizes are prime, so that no two axes can be swapped."""

import math

import pytest
import torch
from torch import nn

from regard.attention import core
from regard.attention.core import Attention, Memory
from regard.attention.masks import Bias, Padding, Prefix, Rule, Window, causal
from regard.attention.positions import Learned, Sinusoid, sinusoid
from regard.attention.recording import record, scope
from regard.attention.scores import Additive, dot, scaled_dot, uniform, weigh
from regard.attention.trace import Trace
from regard.attention.variants import NEED_EQUAL_WIDTHS, SCORES, multihead
from regard.layers.pytree import reorder

BATCH, HEADS, QUERIES, LENGTH, WIDTH = 3, 5, 7, 11, 35


def memory_of(attention: Attention, length: int = LENGTH, real: torch.Tensor | None = None) -> Memory:
    return attention.remember(torch.randn(BATCH, length, WIDTH), real)


def padded() -> torch.Tensor:
    return torch.arange(LENGTH) < torch.tensor([LENGTH, 4, 1])[:, None]


def test_the_worked_example():
    """Scores 112 and 96 at width 64 are 14 and 12 once scaled, and weigh 0.88 and 0.12."""
    query = torch.zeros(1, 1, 1, 64)
    query[..., 0] = 1.0
    key = torch.zeros(1, 1, 2, 64)
    key[0, 0, :, 0] = torch.tensor([112.0, 96.0])
    assert torch.equal(dot(query, key).flatten(), torch.tensor([112.0, 96.0]))
    weights = weigh(scaled_dot(query, key), None).flatten()
    assert [round(weight, 2) for weight in weights.tolist()] == [0.88, 0.12]
    attention = Attention(nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity())
    value = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    assert round(attention(query[0], Memory(key, value)).item(), 2) == 0.88


@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_and_make_the_context(score: str):
    attention = SCORES[score](WIDTH, WIDTH, 13)
    with record(prove=True) as recorder, scope("here"):
        attention(torch.randn(1, QUERIES, WIDTH), attention.remember(torch.randn(1, LENGTH, WIDTH)))
    trace = Trace(recorder)
    weights = trace.weights("here")
    assert weights.shape == (1, QUERIES, LENGTH)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, QUERIES))
    mixed, used = trace.proof("here")
    torch.testing.assert_close(mixed, used, atol=1e-5, rtol=0)


@pytest.mark.parametrize("score", SCORES)
def test_padding_changes_nothing(score: str):
    attention = SCORES[score](WIDTH, WIDTH, 13)
    source, x, real = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, QUERIES, WIDTH), padded()
    together = attention(x, attention.remember(source, real))
    for row, length in enumerate(real.sum(1).tolist()):
        alone = attention(x[row : row + 1], attention.remember(source[row : row + 1, :length]))
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)


def test_uniform_is_the_mean():
    attention = SCORES["uniform"](WIDTH, WIDTH, 13)
    source, real = torch.randn(BATCH, LENGTH, WIDTH), padded()
    mean = (source * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    looked = attention(torch.randn(BATCH, 1, WIDTH), attention.remember(source, real))
    torch.testing.assert_close(looked.squeeze(1), mean)


def test_dot_needs_equal_widths_and_the_others_do_not():
    for score in set(SCORES) - NEED_EQUAL_WIDTHS:
        attention = SCORES[score](WIDTH, 17, 13)
        assert attention(torch.randn(2, 3, WIDTH), attention.remember(torch.randn(2, 5, 17))).shape == (2, 3, 17)


@pytest.mark.parametrize("score", [scaled_dot, dot, uniform, Additive(7)])
def test_a_row_with_nothing_to_see_gives_zeros_and_finite_gradients(score):
    attention = Attention(nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity(), score=score, heads=HEADS)
    source = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    real = padded()
    real[1] = False
    with record() as recorder, scope("here"):
        looked = attention(torch.randn(BATCH, QUERIES, WIDTH), attention.remember(source, real))
    assert torch.equal(looked[1], torch.zeros_like(looked[1]))
    assert torch.equal(recorder.records["here"][0].weights()[1], torch.zeros(HEADS, QUERIES, LENGTH))
    looked.sum().backward()
    assert source.grad is not None and source.grad.isfinite().all()


class Table(Bias):
    """Any bias: here a number for each distance."""

    def __init__(self, heads: int):
        self.table = torch.randn(heads, 2 * LENGTH)

    def rows(self, query, key):
        return self.table[:, LENGTH + key - query[:, None]][None]


RULES: dict[str, Rule | None] = {
    "none": None,
    "causal": causal,
    "window": causal & Window(3),
    "prefix": Prefix(4),
    "padding": Padding(padded()),
    "causal and padding": causal & Padding(padded()),
}


@pytest.mark.parametrize("bias", [None, Table(HEADS)], ids=["plain", "bias"])
@pytest.mark.parametrize("band", [1 << 22, 2 * LENGTH * BATCH], ids=["one band", "many bands"])
@pytest.mark.parametrize("queries", [LENGTH, QUERIES, 1])
@pytest.mark.parametrize("name", RULES)
def test_every_kernel_path_computes_the_same(name, queries, band, bias, monkeypatch):
    """Flag, key mask and bands against weights written out in full."""
    monkeypatch.setattr(core, "BAND", band)
    attention, rule = multihead(WIDTH, HEADS), RULES[name]
    memory, x = memory_of(attention), torch.randn(BATCH, queries, WIDTH)
    with record(prove=True) as recorder, scope("here"):
        attention(x, memory, rule, bias)
    look = recorder.records["here"][0]
    places, keys = torch.arange(LENGTH - queries, LENGTH), torch.arange(LENGTH)
    scores = scaled_dot(look.query, memory.key) + (0 if bias is None else bias.rows(places, keys))
    mask = torch.ones(1, 1, queries, LENGTH, dtype=torch.bool) if rule is None else rule.rows(places, keys)
    weights = scores.masked_fill(~mask, -1e30).softmax(-1)
    torch.testing.assert_close(look.weights(), weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(look.context, weights @ memory.value, atol=1e-5, rtol=0)
    torch.testing.assert_close(look.weights(slice(1, 3), slice(2, 3)), weights[:, 2:3, 1:3], atol=1e-6, rtol=0)


def test_a_memory_extended_step_by_step_is_the_same_memory():
    attention = multihead(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    whole = attention(x, attention.remember(x), causal)
    memory, pieces = None, []
    for part in x.split([4, 1, 6], 1):
        memory = attention.remember(part) if memory is None else memory.append(attention.remember(part))
        pieces.append(attention(part, memory, causal))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=0)


def test_a_memory_without_its_oldest_entries_keeps_its_positions():
    """A sliding memory under a window gives the same as the complete memory."""
    attention = multihead(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    rule = causal & Window(3)
    whole = attention(x, attention.remember(x), rule)
    kept = attention.remember(x[:, 4:])._replace(start=4)
    torch.testing.assert_close(attention(x[:, 7:], kept, rule), whole[:, 7:], atol=1e-5, rtol=0)


def test_hypotheses_of_one_source_share_its_memory():
    attention, beams = multihead(WIDTH, HEADS), 2
    memory = memory_of(attention, real=padded())
    x = torch.randn(BATCH * beams, 1, WIDTH)
    copied = reorder(memory, torch.arange(BATCH).repeat_interleave(beams))
    torch.testing.assert_close(attention(x, memory), attention(x, copied), atol=1e-5, rtol=0)


def test_traced_is_untraced_to_the_bit():
    attention = multihead(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    with record(prove=True):
        traced = attention(x, attention.remember(x), causal)
    assert torch.equal(traced, attention(x, attention.remember(x), causal))


def test_a_trace_of_products_keeps_no_square():
    """Queries and keys are kept as they are; nothing of the size queries × keys is."""
    attention = multihead(WIDTH, HEADS)
    x = torch.randn(1, 509, WIDTH)
    with record() as recorder, scope("here"):
        attention(x, attention.remember(x), causal)
    look = recorder.records["here"][0]
    assert look.stored_weights is None and look.value is None
    assert look.key is not None and look.query.numel() + look.key.numel() == 2 * 509 * WIDTH


def test_recorders_do_not_see_each_other():
    attention = multihead(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    with record() as outer, scope("outer"):
        with record() as inner, scope("inner"):
            attention(x, attention.remember(x))
        attention(x, attention.remember(x))
    attention(x, attention.remember(x))
    assert list(inner.records) == ["inner"] and list(outer.records) == ["outer"] and len(outer.records["outer"]) == 1


def test_sinusoids_are_the_papers():
    table = sinusoid(13, 10)
    for p in range(13):
        for i in range(5):
            angle = p / 10000 ** (2 * i / 10)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    halves = sinusoid(13, 10, halves=True)
    assert torch.equal(halves[:, :5], table[:, 0::2]) and torch.equal(halves[:, 5:], table[:, 1::2])


def test_positions_continue_after_the_past():
    for positions in (Sinusoid(10), Learned(10, 701)):
        assert torch.equal(torch.cat([positions(0, 300), positions(300, 401)]), positions(0, 701))
