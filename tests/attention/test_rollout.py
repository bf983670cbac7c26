"""Attention rollout is the product of its definition."""

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention import rollout as module
from regard.attention.masks import causal
from regard.attention.recording import record, scope
from regard.attention.rollout import rollout, trace_rollout
from regard.attention.trace import Axes, Axis, Trace
from regard.attention.variants import multihead
from regard.errors import UserError

LAYERS, HEADS, N, WIDTH = 3, 5, 11, 15


def by_definition(layers: list[Tensor]) -> np.ndarray:
    """Sum over all paths of positions through the layers, one number at a time, in float64."""
    size = layers[0].size(-1)
    result = np.eye(size)
    for layer in layers:
        following = np.zeros((size, size))
        for i in range(size):
            row = [sum(float(head[i, j]) for head in layer) / len(layer) / 2 + (i == j) / 2 for j in range(size)]
            for j in range(size):
                following[i] += row[j] / sum(row) * result[j]
        result = following
    return result


def traced(
    n: int = N, layers: int = LAYERS, rule=None, name: str = "encoder", axes: Axes | None = None, batch: int = 1
) -> Trace:
    x = torch.randn(batch, n, WIDTH)
    with record() as recorder, torch.no_grad(), scope(name):
        for index in range(layers):
            attention = multihead(WIDTH, HEADS)
            with scope(f"blocks.{index}.self"):
                x = 5 * attention.self_attend(x, rule)[0]
    return Trace(recorder, axes)


@pytest.mark.parametrize("layers", [1, 2, LAYERS])
def test_it_is_the_definition(layers: int) -> None:
    weights = [torch.rand(HEADS, N, N).softmax(-1) for _ in range(layers)]
    result = rollout(weights)
    np.testing.assert_allclose(result.numpy(), by_definition(weights), atol=1e-6)
    torch.testing.assert_close(result.sum(-1), torch.ones(N))
    torch.testing.assert_close(rollout(layer.mean(0) for layer in weights), result)


def test_order_of_layers_matters_and_the_first_is_rightmost() -> None:
    """The last layer attends to position 0 only; the first moved position 2 to position 0."""
    first = torch.eye(3)[None].clone()
    first[0, 0] = torch.tensor([0.0, 0.0, 1.0])
    last = torch.zeros(1, 3, 3)
    last[..., 0] = 1.0
    assert rollout([first, last])[1].tolist() == [0.25, 0.5, 0.25]
    assert rollout([last, first])[1].tolist() == [0.5, 0.5, 0.0]


def test_of_a_trace() -> None:
    trace = traced()
    weights = [trace.weights(site) for site in trace.sites]
    result = trace_rollout(trace)
    np.testing.assert_allclose(result.numpy(), by_definition(weights), atol=1e-6)
    assert not torch.allclose(result, torch.full((N, N), 1 / N), atol=0.01)
    chosen = trace.sites[:2]
    torch.testing.assert_close(trace_rollout(trace, chosen), rollout(weights[:2]))


def test_a_causal_decoder_by_naming_its_sites() -> None:
    trace = traced(rule=causal, name="decoder")
    with pytest.raises(UserError, match="layers of an encoder; attention here: decoder"):
        trace_rollout(trace)
    result = trace_rollout(trace, trace.sites)
    torch.testing.assert_close(result.sum(-1), torch.ones(N))
    assert torch.equal(result.triu(1), torch.zeros(N, N))
    torch.testing.assert_close(result[0, 0], torch.tensor(1.0))


def test_a_row_without_attention_stays_at_its_position() -> None:
    """A padded query has no weights: the residual connection is all."""
    weights = torch.rand(HEADS, N, N).softmax(-1)
    weights[:, 4] = 0.0
    result = rollout([weights, weights])
    torch.testing.assert_close(result.sum(-1), torch.ones(N))
    assert torch.equal(result[4], torch.eye(N)[4])


def test_more_positions_than_the_limit_are_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced()
    monkeypatch.setattr(module, "MAX_POSITIONS", N - 1)
    monkeypatch.setattr(module, "rollout", lambda _: pytest.fail("computed"))
    with pytest.raises(UserError, match=f"up to 10 positions; 'encoder.blocks.0.self' has {N}"):
        trace_rollout(trace)


def test_cross_attention_and_other_sizes_are_refused() -> None:
    attention = multihead(WIDTH, HEADS)
    trace = traced()
    with record() as recorder, torch.no_grad():
        with scope("cross"):
            attention(torch.randn(1, 3, WIDTH), attention.remember(torch.randn(1, N, WIDTH)))
        with scope("self"):
            attention.self_attend(torch.randn(1, N + 2, WIDTH))
    trace.records |= recorder.records
    with pytest.raises(UserError, match=f"'cross' has 3 queries and {N} keys"):
        trace_rollout(trace, ["cross"])
    with pytest.raises(UserError, match=r"same number of positions in all layers, not encoder.*\(11\), self \(13\)"):
        trace_rollout(trace, ["encoder.blocks.0.self", "self"])


def test_windows_of_an_image_are_refused() -> None:
    """Layers that attend within windows have fewer keys than the image has patches."""
    patches = Axis([str(index) for index in range(4 * N)], unit="patch", grid=(4, N))
    with pytest.raises(UserError, match="self-attention over all positions"):
        trace_rollout(traced(axes=Axes.encoder(patches), batch=4))
    with pytest.raises(UserError, match="needs the axes of a trace of several sequences"):
        trace_rollout(traced(batch=4))


def test_one_of_several_inputs() -> None:
    trace = traced(axes=Axes.encoder(Axis("abcdefghijk")), batch=3)
    trace.batch = slice(2, 3)
    weights = [records[0].weights()[2] for records in trace.records.values()]
    torch.testing.assert_close(trace_rollout(trace), rollout(weights))


def test_without_layers() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])


def test_a_vit_at_384_pixels() -> None:
    """577 positions."""
    result = trace_rollout(traced(577))
    assert result.shape == (577, 577)
    torch.testing.assert_close(result.sum(-1), torch.ones(577))
