"""A network rewritten for speed computes what it computed before; in int8, nearly."""

import math
from copy import deepcopy
from pathlib import Path
from typing import cast

import pytest
import torch
from needs import need_weights

import regard
from regard.attention.core import Attention
from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.layers.autoregressive import EMPTY, TransformerLM
from regard.layers.blocks import Block
from regard.runtime.fused_decoder import FusedDecoder
from regard.runtime.linear import PackedQKV
from regard.runtime.optimize import optimize_for_inference
from regard.tasks.generate.likelihood import log_probabilities
from regard.text.tokenizer import Tokenizer
from tests.models.test_language_models import MODELS as SMALL
from tests.models.test_language_models import made as built
from tests.models.test_language_models import texts
from tests.models.test_laws import alike

# Wide enough that every product is rewritten, with a remainder after full vectors.
MODELS = {name: model | dict(width=96, feedforward=388) for name, model in SMALL.items()}


def made(model: dict) -> TransformerLM:
    """Logits are kept apart: the numbers of a few layers this wide would else run away."""
    network = built(model, vocabulary=103)
    for parameter in network.parameters():
        parameter.data *= 0.3
    return network


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_all_at_once_equals_step_by_step(model: dict, rows: int, kernels: str) -> None:
    torch.set_num_threads({1: 2, 3: 3, 20: 1}[rows])
    plain, swift, tokens = made(model), made(model), texts(rows, 17)
    assert optimize_for_inference(swift) is swift
    assert isinstance(swift.decoder, FusedDecoder) is (kernels == "ours")
    expected = plain(tokens)
    alike(swift(tokens), expected)
    state, pieces = EMPTY, []
    for chunk in tokens.split([5, 1, 1, 1, 3, 1, 1, 4], 1):
        logits, state = swift.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), expected)
    ours, theirs = dict(swift.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_trace_has_the_weights_that_were_used(model: dict, precision: str, kernels: str) -> None:
    network, tokens = optimize_for_inference(made(model), precision), texts(1, 9)
    with record(prove=True) as recorder:
        traced = network(tokens)
    assert torch.equal(traced, network(tokens))
    trace = Trace(recorder)
    for site in trace.sites:
        alike(*trace.proof(site))


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_int8_outputs_are_nearly_the_same(model: dict, kernels: str) -> None:
    plain, small, tokens = made(model), optimize_for_inference(made(model), "int8"), texts(3, 17)
    expected = plain(tokens)
    away = (small(tokens) - expected).abs().max() / expected.abs().max()
    assert 0 < away < 0.05


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_int8_outputs_are_nearly_the_same_step_by_step(model: dict, rows: int, kernels: str) -> None:
    plain, small, tokens = made(model), made(model), texts(rows, 12)
    optimize_for_inference(small, "int8")
    expected, state = plain(tokens), EMPTY
    for place in range(12):
        logits, state = small.step(tokens[:, place : place + 1], state)
        away = (logits[:, 0] - expected[:, place]).abs().max() / expected.abs().max()
        assert 0 < away < 0.05


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_it_can_still_be_trained(model: dict, kernels: str) -> None:
    """In double precision, so that the products of different kernels do not differ by rounding."""
    plain, swift, tokens = made(model).double(), optimize_for_inference(made(model)).double(), texts(3, 9)
    for network in (plain, swift):
        network(tokens).square().mean().backward()
    largest = max(float(parameter.grad.abs().max()) for parameter in plain.parameters() if parameter.grad is not None)
    for (name, theirs), ours in zip(plain.named_parameters(), swift.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-6, atol=1e-12 * largest), name


@torch.no_grad()
def test_an_optimized_network_can_be_converted_to_double_precision(kernels: str) -> None:
    network, tokens = made(MODELS["gpt-2"]), texts(2, 9)
    optimize_for_inference(network)
    expected = network(tokens)
    network.double()
    state, pieces = EMPTY, []
    for token in tokens.split(1, 1):
        logits, state = network.step(token, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1).float(), expected)


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_int8_outputs_do_not_depend_on_the_batch(model: dict, kernels: str) -> None:
    """Each row is quantised by its own maximum: other rows may be a thousand times as large."""
    network, tokens = optimize_for_inference(made(model), "int8"), texts(3, 9)
    together = network(tokens)
    for row in range(3):
        alike(together[row], network(tokens[row : row + 1])[0])


@torch.no_grad()
def test_int8_perplexity_of_stories_is_within_a_percent() -> None:
    folder = need_weights("stories15M")
    full, small = regard.load(folder), regard.load(folder, precision="int8")
    stories = full.run("Once upon a time", max_new_tokens=200, temperature=1.0, num_return_sequences=8, seed=3)
    prompt = full.processor.target.prompt("Once upon a time")
    rows = [[*prompt, *story.tokens] for story in (stories, *stories.alternatives)]
    losses = [
        sum(-float(log_probabilities(model.network, torch.tensor([row])).sum()) for row in rows) / sum(map(len, rows))
        for model in (full, small)
    ]
    assert math.exp(losses[1] - losses[0]) == pytest.approx(1.0, abs=0.01)


def test_an_int8_model_is_not_saved(tmp_path: Path) -> None:
    folder = need_weights("stories260K")
    model = regard.load(folder, precision="int8", device="cpu")
    with pytest.raises(regard.UserError, match="float32"):
        model.save(tmp_path / "out")
    regard.load(folder).save(tmp_path / "whole")
    assert isinstance(regard.load(tmp_path / "whole").processor.target, Tokenizer)


@torch.no_grad()
def test_a_network_used_for_generation_can_be_copied(kernels: str) -> None:
    network, tokens = optimize_for_inference(made(MODELS["gpt-2"])), texts(2, 9)
    state = network.step(tokens[:, :5], EMPTY)[1]
    expected = network.step(tokens[:, 5:6], state)[0]
    other = deepcopy(network)
    joints = [each.qkv for each in other.modules() if isinstance(each, Attention)]
    assert all(isinstance(joint, PackedQKV) and joint.is_current for joint in joints)
    assert torch.equal(other.step(tokens[:, 5:6], other.step(tokens[:, :5], EMPTY)[1])[0], expected)


@torch.no_grad()
def test_half_precision_uses_the_original_blocks(kernels: str) -> None:
    plain, swift, tokens = made(MODELS["gpt-2"]), optimize_for_inference(made(MODELS["gpt-2"])), texts(8, 17)
    with torch.autocast("cpu", torch.bfloat16):
        found = [network.step(tokens[:, 16:], network.step(tokens[:, :16], EMPTY)[1])[0] for network in (plain, swift)]
    torch.testing.assert_close(found[1], found[0], atol=0.1, rtol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("name", ["up", "down"])
def test_weights_stored_otherwise_are_used_all_the_same(name: str, kernels: str) -> None:
    plain, swift, tokens = made(MODELS["gpt-2"]), optimize_for_inference(made(MODELS["gpt-2"])), texts(2, 9)
    for block in cast(list[Block], swift.decoder.blocks):
        linear = getattr(block.feedforward, name)
        linear.weight.data = linear.weight.data.t().contiguous().t()
    state = swift.step(tokens[:, :8], EMPTY)[1]
    alike(swift.step(tokens[:, 8:], state)[0][:, 0], plain(tokens)[:, -1])
