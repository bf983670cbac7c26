"""Linear layers by oneDNN: the same function and the same gradients as torch's own, wherever they are used."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from needs import need
from torch import Tensor, nn

from regard.kernels import onednn, ops
from regard.layers.inputs import ImageBatch, TokenBatch
from regard.models.registry import build
from regard.runtime.linear import SmallBatchLinear
from regard.runtime.optimize import optimize_for_inference, optimized_for_training


@pytest.fixture(autouse=True)
def _forced(monkeypatch: pytest.MonkeyPatch) -> None:
    need(torch.backends.mkldnn.is_available(), "a build of torch with oneDNN")
    monkeypatch.setattr(onednn, "is_faster", lambda: True)


def assert_near(ours: Tensor | None, expected: Tensor | None) -> None:
    assert ours is not None
    assert expected is not None
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("shape", [(7, 13), (3, 5, 13), (2, 3, 5, 13), (131, 13)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_torch(shape: tuple[int, ...], with_bias: bool) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(shape), torch.randn(11, 13), *([torch.randn(11)] if with_bias else [])]
    sides = []
    for function in (onednn.linear, F.linear):
        x, weight, *bias = (tensor.clone().requires_grad_() for tensor in inputs)
        y = function(x, weight, bias[0] if bias else None)
        y.square().sum().backward()
        sides.append([y.detach(), x.grad, weight.grad, *(tensor.grad for tensor in bias)])
    for ours, expected in zip(*sides, strict=True):
        assert_near(ours, expected)


def test_transposed_and_strided_operands() -> None:
    torch.manual_seed(2)
    x = torch.randn(13, 17, 5).transpose(0, 2)[:, ::2]
    weight = torch.randn(13, 11).t()
    assert_near(onednn.linear(x, weight, None), F.linear(x, weight))


def test_a_frozen_weight_gets_no_gradient() -> None:
    x = torch.randn(9, 13, requires_grad=True)
    weight = torch.randn(11, 13)
    onednn.linear(x, weight, None).sum().backward()
    assert_near(x.grad, weight.sum(0).expand(9, 13))
    assert weight.grad is None


def test_other_dtypes_autocast_and_empty_inputs_are_left_to_torch() -> None:
    weight = torch.randn(11, 13)
    double = ops.linear(torch.randn(9, 13).double(), weight.double(), None)
    assert double.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.linear(torch.randn(9, 13), weight, None).dtype == torch.bfloat16
    assert ops.linear(torch.randn(0, 13), weight, None).shape == (0, 11)
    with pytest.raises(RuntimeError, match="shape"):
        ops.linear(torch.randn(9, 12), weight, None)


def test_few_and_many_rows_give_the_same_results() -> None:
    """Either side of the number of rows at which another kernel takes over."""
    torch.manual_seed(3)
    x, weight, bias = torch.randn(67, 24), torch.randn(11, 24), torch.randn(11)
    with torch.inference_mode():
        for rows in (1, 7, 8, 9, 64, 65):
            assert_near(ops.linear(x[:rows], weight, bias), F.linear(x[:rows], weight, bias))


def test_training_computes_the_same_updates_and_leaves_the_layers_as_they_were() -> None:
    results = []
    for used in (True, False):
        torch.manual_seed(4)
        network = nn.Sequential(nn.Linear(13, 17), nn.GELU(), nn.Linear(17, 5))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        x = torch.randn(31, 13)
        names = list(network.state_dict())
        if used:
            with optimized_for_training(network):
                assert isinstance(network[0], SmallBatchLinear)
                assert list(network.state_dict()) == names
                _steps(network, optimizer, x)
            assert type(network[0]) is nn.Linear
        else:
            _steps(network, optimizer, x)
        results.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    assert_near(*results)


def _steps(network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()


FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": dict(vocabulary=31, max_positions=32),
    "bert": dict(vocabulary=31, max_positions=32),
    "transformer": dict(source_vocabulary=31, target_vocabulary=31),
    "vit": dict(image_size=20, patch=4),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_networks_for_inference_compute_the_same(family: str) -> None:
    torch.manual_seed(5)
    network: Any = build(dict(family=family, width=72, heads=3, depth=2, **FAMILIES[family])).eval()
    tokens = TokenBatch(torch.randint(5, 31, (7, 19)), torch.full((7,), 19))
    inputs: dict[str, tuple] = {
        "gpt": (tokens.tokens,),
        "transformer": (tokens, tokens.tokens),
        "vit": (ImageBatch(torch.randn(3, 3, 20, 20)),),
    }
    with torch.inference_mode():
        compute = network.encode if family == "vit" else network
        expected = compute(*inputs.get(family, (tokens,)))
        fast = optimize_for_inference(deepcopy(network))
        compute = fast.encode if family == "vit" else fast
        assert_near(compute(*inputs.get(family, (tokens,))), expected)


@pytest.mark.parametrize(("forced", "expected"), [("1", True), ("0", False)])
def test_the_detection_can_be_forced(forced: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(onednn.FORCED, forced)
    onednn.is_faster.cache_clear()
    assert onednn.is_faster() is expected
    onednn.is_faster.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "capability", "limit", "expected"),
    [
        ("AuthenticAMD", "AVX512", None, True),
        ("GenuineIntel", "AVX512", None, False),  # MKL uses AVX-512 itself
        ("AuthenticAMD", "AVX2", None, False),
        ("AuthenticAMD", "AVX512", "AVX2", False),
        ("AuthenticAMD", "AVX512", "AVX512_CORE_FP16", True),
    ],
)
def test_it_is_used_where_torch_has_no_avx512(
    vendor: str, capability: str, limit: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for name in (onednn.FORCED, *onednn.VARIABLES):
        monkeypatch.delenv(name, raising=False)
    if limit:
        monkeypatch.setenv(onednn.VARIABLES[0], limit)
    monkeypatch.setattr(onednn, "_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    onednn.is_faster.cache_clear()
    assert onednn.is_faster() is (expected and torch.backends.mkl.is_available())
    onednn.is_faster.cache_clear()


def test_the_vendor_is_read_on_linux() -> None:
    if Path("/proc/cpuinfo").is_file() and "vendor_id" in Path("/proc/cpuinfo").read_text():
        assert onednn._vendor()
