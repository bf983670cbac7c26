"""Linear layers by oneDNN: the same function and the same gradients as torch's own, wherever they are used."""

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from needs import need
from torch import Tensor

from regard.kernels import onednn
from regard.layers.inputs import ImageBatch
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from regard.runtime.linear import OneDNNLinear
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
    layer = OneDNNLinear(13, 11)
    assert layer.double()(torch.randn(9, 13).double()).dtype == torch.float64
    layer = layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(9, 13)).dtype == torch.bfloat16
    assert layer(torch.randn(0, 13)).shape == (0, 11)
    with pytest.raises(RuntimeError, match="shape"):
        layer(torch.randn(9, 12))


def test_training_computes_the_same_updates_and_leaves_the_layers_as_they_were() -> None:
    results = []
    for used in (True, False):
        torch.manual_seed(4)
        network: Any = Classifier(vit(), ["a", "b"])
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        images = ImageBatch(torch.randn(5, 3, 20, 20))
        names = list(network.state_dict())
        with optimized_for_training(network) if used else nullcontext():
            assert any(isinstance(module, OneDNNLinear) for module in network.modules()) is used
            assert list(network.state_dict()) == names
            for _ in range(3):
                optimizer.zero_grad()
                network(images).square().mean().backward()
                optimizer.step()
        assert not any(isinstance(module, OneDNNLinear) for module in network.modules())
        results.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    assert_near(*results)


def test_texts_of_many_lengths_are_left_to_torch() -> None:
    """Each length would take memory."""
    network = build(dict(family="gpt", width=72, heads=3, depth=1, vocabulary=31, max_positions=32))
    with optimized_for_training(network):
        assert not any(isinstance(module, OneDNNLinear) for module in network.modules())
    assert not any(isinstance(module, OneDNNLinear) for module in optimize_for_inference(network).modules())


def test_an_image_encoder_for_inference_computes_the_same() -> None:
    network = vit().eval()
    images = ImageBatch(torch.randn(3, 3, 20, 20))
    with torch.inference_mode():
        expected = network.encode(images)
        fast = optimize_for_inference(deepcopy(network))
        assert any(isinstance(module, OneDNNLinear) for module in fast.modules())
        assert_near(fast.encode(images), expected)


def vit() -> Any:
    torch.manual_seed(5)
    return build(dict(family="vit", width=72, heads=3, depth=2, image_size=20, patch=4))


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
