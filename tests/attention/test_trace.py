"""Axes of a trace: the task defines what the positions of each site are."""

import torch

from regard.attention.recording import Recorder, record, scope
from regard.attention.trace import Axes, Axis, Trace
from regard.attention.variants import multihead


def traced(axes: Axes | None, *names: str, queries: int, keys: int) -> Trace:
    """One attention of two heads at a site."""
    attention = multihead(8, 2)
    with record() as recorder, torch.no_grad(), scope(".".join(names)):
        attention(torch.randn(1, queries, 8), attention.remember(torch.randn(1, keys, 8)))
    return Trace(recorder, axes)


def at(axes: Axes, site: str) -> tuple[Axis, Axis]:
    pair = axes.at(site)
    assert pair is not None
    return pair


def test_without_axes_positions_are_numbered():
    trace = traced(None, "encoder", "self", queries=2, keys=3)
    assert trace.labels("encoder.self") == (["0", "1"], ["0", "1", "2"])
    assert trace.source == trace.target == trace.output == []


def test_the_first_pattern_that_matches_counts():
    source = Axis("abc")
    output = Axis(["x", "y"])
    target = Axis(["<", "x"])
    axes = Axes.encoder_decoder(source, target, output)
    assert axes.at("decoder.blocks.1.cross") == (output, source)
    assert axes.at("decoder.cross") == (output, source)
    assert axes.at("encoder.blocks.1.self") == (source, source)
    assert axes.at("decoder.blocks.1.self") == (target, target)
    queries, keys = at(axes, "encoder.forwards.0.layers.0.past")
    assert queries == source and keys.labels == ["·", "a", "b"]


def test_a_memory_of_another_length_is_labelled_as_a_unit():
    axes = Axes.encoder_decoder(Axis("abc"), Axis("<x"), Axis("xy"))
    trace = traced(axes, "decoder", "cross", queries=2, keys=1)
    assert trace.labels("decoder.cross") == (["x", "y"], ["entire source"])


def test_positions_may_be_patches_of_an_image():
    patches = Axis([f"{row},{column}" for row in range(2) for column in range(3)], unit="patch", grid=(2, 3))
    words = Axis(["a", "cat"])
    trace = traced(Axes({"decoder.*.cross": (words, patches)}), "decoder.blocks.0", "cross", queries=2, keys=6)
    assert trace.labels("decoder.blocks.0.cross") == (["a", "cat"], ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"])
    queries, keys = at(trace.axes, "decoder.blocks.0.cross")
    assert queries.grid is None and keys.unit == "patch" and keys.grid == (2, 3)


def test_rows_of_a_causal_model_are_the_tokens_that_attend():
    axes = Axes.causal(Axis(["a", "b"]), output=Axis(["b", "c"]))
    trace = traced(axes, "decoder.blocks.0", "self", queries=2, keys=2)
    assert trace.labels("decoder.blocks.0.self") == (["a", "b"], ["a", "b"])
    assert trace.target == ["a", "b"] and trace.output == ["b", "c"]


def test_the_repr_is_one_line_with_the_number_of_tokens_and_layers():
    axes = Axes.encoder_decoder(Axis("abc"), Axis("<x"), Axis("xy"))
    trace = traced(axes, "decoder", "cross", queries=2, keys=3)
    assert repr(trace) == "Trace(3 source tokens, 2 target tokens, 1 attention layer: decoder.cross)"
    trace.records["decoder.cross.2"] = trace.records["decoder.cross"]
    assert repr(trace).endswith("2 attention layers: decoder.cross … decoder.cross.2)")
    assert repr(Trace(Recorder())) == "Trace(0 attention layers: none)"
    assert Trace(Recorder())._repr_html_() is None
