"""A model that reads recordings, rewritten for speed, computes what it computed before; in int8, nearly."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.layers.audio_encoder import Encoded
from regard.layers.inputs import AudioBatch
from regard.models.registry import build
from regard.runtime.fused_decoder import FusedDecoder
from regard.runtime.optimize import optimize_for_inference
from regard.runtime.unpadded import Unpadded
from tests.models.test_laws import alike

WHISPER = dict(family="whisper", bins=7, width=96, heads=3, depth=2, feedforward=388, decoder_depth=3,
               source_positions=23, max_positions=31)  # fmt: skip
TOKENS = 103


def made(**changes: Any) -> Any:
    torch.manual_seed(0)
    network = build(WHISPER | changes, vocabulary=TOKENS).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.09)
    return network


def audio(*lengths: int) -> AudioBatch:
    frames = torch.randn(len(lengths), max(lengths), 7, generator=torch.Generator().manual_seed(1))
    return AudioBatch(frames, torch.tensor(lengths))


def targets(rows: int) -> Tensor:
    return torch.randint(0, TOKENS, (rows, 13), generator=torch.Generator().manual_seed(2))


def stepwise(network: Any, source: AudioBatch, tokens: Tensor) -> Tensor:
    state, pieces = network.start(source), []
    for chunk in tokens.split([3, 1, 1, 1, 4, 1, 1, 1], 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    return torch.cat(pieces, 1)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(46,), (46, 46, 46), (46, 9, 1)], ids=str)
@pytest.mark.parametrize("heads", [3, 12])
def test_all_at_once_and_step_by_step(lengths: tuple[int, ...], heads: int, kernels: str) -> None:
    plain, swift = made(decoder_heads=heads), made(decoder_heads=heads)
    assert optimize_for_inference(swift) is swift
    assert isinstance(swift.decoder, FusedDecoder) is (kernels == "ours")
    assert isinstance(swift.encoder, Unpadded)
    source, tokens = audio(*lengths), targets(len(lengths))
    expected = plain(source, tokens)
    alike(swift(source, tokens), expected)
    alike(stepwise(swift, source, tokens), expected)
    ours, theirs = dict(swift.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@torch.no_grad()
def test_a_step_is_one_call_of_the_kernels(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.kernels import ops

    calls: list[int] = []
    step = ops.decode_step
    monkeypatch.setattr(ops, "decode_step", lambda *arguments: calls.append(1) or step(*arguments))
    network = optimize_for_inference(made())
    stepwise(network, audio(46, 46), targets(2))
    assert len(calls) == (6 if kernels == "ours" else 0)
    calls.clear()
    stepwise(network, audio(46, 9), targets(2))  # padded sources go through the blocks
    assert not calls


@torch.no_grad()
def test_hypotheses_of_a_search_share_their_source(kernels: str) -> None:
    plain, swift = made(), optimize_for_inference(made())
    options = DecodeOptions(num_beams=4, num_return_sequences=3)
    expected, found = (search(network, audio(46, 46, 46), 1, 2, options, 9) for network in (plain, swift))
    assert [[each.tokens for each in row] for row in found] == [[each.tokens for each in row] for row in expected]


@torch.no_grad()
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_trace_has_the_weights_that_were_used(precision: str, kernels: str) -> None:
    network = optimize_for_inference(made(), precision)
    with record(prove=True) as recorder:
        network(audio(46), targets(1))
    trace = Trace(recorder)
    assert len(trace.sites) == 2 + 2 * 3
    for site in trace.sites:
        alike(*trace.proof(site))


@torch.no_grad()
def test_int8_is_nearly_the_same(kernels: str) -> None:
    plain, small = made(), optimize_for_inference(made(), "int8")
    source, tokens = audio(46, 46), targets(2)
    expected = plain(source, tokens)
    for found in (small(source, tokens), stepwise(small, source, tokens)):
        assert 0 < (found - expected).abs().max() / expected.abs().max() < 0.05


def test_it_can_still_be_trained(kernels: str) -> None:
    plain, swift = made(), optimize_for_inference(made())
    for network in (plain, swift):
        network(audio(46, 9), targets(2)).square().mean().backward()
    for (name, theirs), ours in zip(plain.named_parameters(), swift.parameters(), strict=True):
        assert (ours.grad is None) is (theirs.grad is None), name
        if theirs.grad is not None and ours.grad is not None:
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5 * float(theirs.grad.abs().max())), name


@torch.no_grad()
def test_a_copy_computes_the_same(kernels: str) -> None:
    network = optimize_for_inference(made())
    source, tokens = audio(46), targets(1)
    expected = stepwise(network, source, tokens)
    copy = deepcopy(network)
    for parameter in network.parameters():
        parameter.zero_()
    alike(stepwise(copy, source, tokens), expected)


@torch.no_grad()
def test_biases_of_packed_projections_may_change(kernels: str) -> None:
    """Keys have none."""
    network, changed = optimize_for_inference(made()), made()
    for each in (network, changed):
        for side in (each.encoder, each.decoder):
            side.blocks[0].self_attention.value.bias.add_(0.7)
    encoded = Encoded(torch.randn(1, 23, 96), torch.tensor([23]))
    tokens = targets(1)
    alike(network.step(tokens, network.start_from(encoded))[0], changed.step(tokens, changed.start_from(encoded))[0])
    alike(network(audio(46), tokens), changed(audio(46), tokens))
