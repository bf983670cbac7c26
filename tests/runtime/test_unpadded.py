"""An encoder rewritten for speed computes what it computed before, of real tokens alone."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from regard.attention.core import Attention
from regard.attention.recording import record
from regard.layers.blocks import PreNorm
from regard.layers.inputs import TokenBatch, pad
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import build
from regard.runtime.linear import DynamicInt8Linear, PackedWeights
from regard.runtime.optimize import optimize_for_inference
from regard.runtime.unpadded import Layout, Unpadded
from regard.tasks.batching import by_tokens
from tests.models.test_laws import alike

SIZES = {"family": "bert", "width": 66, "heads": 6, "depth": 3, "feedforward": 130, "max_positions": 31}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"token_types": 1, "position_offset": 2, "epsilon": 1e-5},
    "distilbert": {"token_types": 0, "pooler": False},
    "albert": {"embedding_width": 17, "hidden_groups": 1, "inner_group_size": 2, "activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
}
LENGTHS = [5, 19, 5, 1, 11, 19, 5]
HEADS = {
    "words": MaskedLM,
    "labels": lambda body: Classifier(body, ("a", "b", "c")),
    "tags": lambda body: TokenClassifier(body, ("a", "b", "c")),
    "spans": SpanClassifier,
}


def made(fields: dict[str, Any], head: Any = lambda body: body) -> Any:
    """A network with numbers that are neither tiny nor alike."""
    torch.manual_seed(7)
    network = head(build(SIZES | fields, vocabulary=103))
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 1.0)
    return network.eval()


def fast_of(network: nn.Module, precision: str = "float32") -> Any:
    return optimize_for_inference(network, precision)


def texts(lengths: list[int] = LENGTHS) -> TokenBatch:
    return pad([torch.randint(5, 103, (length,)).tolist() for length in lengths], 0)


@torch.no_grad()
@pytest.mark.parametrize("fields", FAMILIES.values(), ids=FAMILIES)
def test_states_of_real_tokens_are_the_same(fields: dict[str, Any], kernels: str) -> None:
    plain, fast = made(fields), made(fields)
    assert optimize_for_inference(fast) is fast
    assert isinstance(fast.encoder, Unpadded)
    packed: list[Any] = [each.qkv for each in fast.modules() if isinstance(each, Attention)]
    assert all(isinstance(each, PackedWeights) if kernels == "ours" else each.is_current for each in packed)
    for text in (texts(), texts([8, 8, 8]), texts([1]), texts([31, 2])):
        expected, found = plain.encode(text), fast.encode(text)
        alike(found[text.real], expected[text.real])
        if text.lengths.min() < text.tokens.size(1):
            assert not found[~text.real].any()
    ours, theirs = dict(fast.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_heads_have_equal_outputs(head: Any, kernels: str) -> None:
    plain, fast, text = made({}, head), fast_of(made({}, head)), texts()
    expected, found = plain(text), fast(text)
    real = text.real if found.ndim == 3 else slice(None)
    alike(found[real], expected[real])


@torch.no_grad()
def test_blocks_that_norm_first_are_known_too(kernels: str) -> None:
    plain = made({})
    for block in plain.encoder.blocks:
        for name in ("self_attention_residual", "feedforward_residual"):
            setattr(block, name, PreNorm(getattr(block, name).norm, 0.0))
    fast, text = fast_of(deepcopy(plain)), texts()
    assert isinstance(fast.encoder, Unpadded)
    alike(fast.encode(text)[text.real], plain.encode(text)[text.real])


@pytest.mark.parametrize("fields", [FAMILIES["bert"], FAMILIES["albert"]], ids=["bert", "albert"])
def test_traces_and_training_use_the_original_blocks(fields: dict[str, Any], kernels: str) -> None:
    plain, fast, text = made(fields), fast_of(made(fields)), texts()
    with torch.no_grad():
        unseen = fast.encode(text)
        with record(prove=True) as recorder:
            seen = fast.encode(text)
        with record(prove=True) as other:
            plain.encode(text)
    assert recorder.records.keys() == other.records.keys()
    alike(seen[text.real], unseen[text.real])
    for network in (plain, fast):
        network.double().encode(text)[text.real].square().sum().backward()
    for one, two in zip(fast.parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)
        if one.grad is not None and two.grad is not None:
            alike(one.grad, two.grad)


@torch.no_grad()
def test_weights_that_change_afterwards_are_used(kernels: str) -> None:
    plain, fast, text = made({}), fast_of(made({})), texts()
    for network in (plain, fast):
        for parameter in network.parameters():
            parameter.mul_(0.7)
    alike(fast.encode(text)[text.real], plain.encode(text)[text.real])


@torch.no_grad()
@pytest.mark.parametrize("fields", FAMILIES.values(), ids=FAMILIES)
def test_int8_outputs_are_nearly_equal_in_any_batch(fields: dict[str, Any]) -> None:
    plain, fast, text = made(fields), fast_of(made(fields), "int8"), texts()
    assert isinstance(fast.encoder, Unpadded) and any(isinstance(each, DynamicInt8Linear) for each in fast.modules())
    expected, found = plain.encode(text)[text.real], fast.encode(text)[text.real]
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.05
    for row, length in enumerate(LENGTHS):
        alone = TokenBatch(text.tokens[row : row + 1, :length], text.lengths[row : row + 1])
        with record() as recorder:
            seen = fast.encode(alone)
        assert recorder.records
        assert torch.equal(seen, fast.encode(alone))
        alike(fast.encode(alone)[0], fast.encode(text)[row, :length])


@torch.no_grad()
def test_an_int8_product_quantises_each_row_separately() -> None:
    weight, bias = torch.randn(31, 70), torch.randn(31)
    x = torch.randn(3, 5, 70) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    expected = nn.functional.linear(x, weight)
    for found in (DynamicInt8Linear(weight, None)(x), DynamicInt8Linear(weight, bias)(x) - bias):
        assert ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 0.03
    above = nn.functional.gelu(x)
    exact = nn.functional.linear(above, weight, bias)
    errors = [
        (product(above) - exact).norm()
        for product in (DynamicInt8Linear(weight, bias, -0.1701), DynamicInt8Linear(weight, bias))
    ]
    assert errors[0] < errors[1]
    assert torch.allclose(DynamicInt8Linear(weight, bias)(torch.zeros(2, 70)), bias.expand(2, -1))


@torch.no_grad()
def test_half_precision_uses_the_original_blocks(kernels: str) -> None:
    plain, fast, text = made({}), fast_of(made({})), texts()
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = plain.encode(text)[text.real], fast.encode(text)[text.real]
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("family", ["bert", "deberta"])
def test_int8_runs_without_no_grad(family: str) -> None:
    """There is nothing to train, so that nobody need say so."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no products of eight bits")
    network: Any = optimize_for_inference(build(SIZES | {"family": family}, vocabulary=103).eval(), "int8")
    assert not network.encode(texts()).requires_grad


def test_other_blocks_are_left_alone() -> None:
    torch.manual_seed(1)
    network: Any = build({"family": "deberta", "width": 24, "heads": 2, "depth": 1, "max_positions": 19}, vocabulary=31)
    kind = type(network.encoder)
    assert type(fast_of(network).encoder) is kind is not Unpadded


def test_tokens_are_restored_to_their_positions() -> None:
    x, real = torch.randn(5, 7, 3), torch.rand(5, 7) < 0.6
    real[3] = False
    layout = Layout.of(x, real)
    together = layout.concatenate(x)
    assert len(together) == int(real.sum()) == sum(count * size for count, size in layout.groups)
    assert torch.equal(layout.pad(together, x.shape), x * real[:, :, None])
    begin = 0
    for count, size in layout.groups:
        for _ in range(count):
            rows = {int(row) // 7 for row in layout.positions[begin : begin + size]}  # type: ignore[index]
            assert len(rows) == 1 and int(real[rows.pop()].sum()) == size
            begin += size


def test_batches_have_room_for_so_many_tokens_or_rows() -> None:
    lengths = [3, 50, 7, 7, 1, 20, 4, 9, 2, 2]
    groups = list(by_tokens(lengths, batch_size=2, max_tokens=20))
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    flat = [lengths[number] for group in groups for number in group]
    assert flat == sorted(lengths, reverse=True)
    for group in groups:
        assert len(group) <= 2 or sum(lengths[number] for number in group) <= 20
    assert [len(group) for group in groups[:2]] == [2, 2]
    assert list(by_tokens([], 3)) == []
