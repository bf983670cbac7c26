"""The C kernels compute what torch computes, for every shape, whatever is left over at the edges."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import need
from torch import Tensor, nn

from regard.kernels import bindings, ops
from regard.kernels.ops import activation_id, scaled_dot_product_attention
from regard.layers.blocks import ACTIVATIONS, FeedForward
from regard.runtime.linear import PackedLinear, PackedWeights, SmallBatchLinear, WeightOnlyInt8Linear
from tests.models.test_laws import alike

SIZES = st.integers(1, 53)
ACTIVATED = [None, *ACTIVATIONS.values()]
MANY = 1 << 13


@pytest.fixture(autouse=True, scope="module")
def ours() -> None:
    need(ops.available(), "the kernels were not built: install a C compiler (gcc), then reinstall regard")


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(inputs * 1000 + outputs)
    return nn.Linear(inputs, outputs, bias)


@torch.no_grad()
def as_identity() -> nn.Linear:
    layer = nn.Linear(1, 1)
    layer.weight.fill_(1.0)
    layer.bias.fill_(0.0)
    return layer


@settings(max_examples=60, deadline=None)
@given(rows=SIZES, inputs=SIZES, outputs=SIZES, bias=st.booleans(), threads=st.integers(1, 3))
@torch.no_grad()
def test_a_few_rows(rows: int, inputs: int, outputs: int, bias: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    layer, x = linear(inputs, outputs, bias), torch.randn(rows, inputs)
    assert ops.supports_small_batch(x)
    alike(SmallBatchLinear(layer)(x), layer(x))
    found, scale = WeightOnlyInt8Linear(layer.weight, layer.bias)(x), layer.weight.abs().amax(1, keepdim=True) / 127
    alike(found, F.linear(x, (layer.weight / scale).round() * scale, layer.bias))


@torch.no_grad()
@pytest.mark.parametrize("outputs", [13, 5000])
def test_bytes_for_many_rows_are_the_same_bytes(outputs: int) -> None:
    layer, x = linear(43, outputs), torch.randn(3 * ops.SMALL_BATCH, 43)
    product = WeightOnlyInt8Linear(layer.weight, layer.bias)
    alike(product(x), torch.cat([product(part) for part in x.split(ops.SMALL_BATCH)]))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 700), inputs=st.integers(1, 900), outputs=SIZES, activation=st.sampled_from(ACTIVATED),
    add=st.booleans(), threads=st.integers(1, 3),
)  # fmt: skip
@torch.no_grad()
def test_many_rows(rows: int, inputs: int, outputs: int, activation: nn.Module | None, add: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    layer, x = linear(inputs, outputs), torch.randn(rows, inputs)
    residual = torch.randn(rows, outputs) if add else None
    y = PackedWeights([layer])(x, residual, 0 if activation is None else activation_id(activation))
    expected = layer(x) if residual is None else layer(x) + residual
    alike(y, expected if activation is None else activation(expected))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), heads=st.integers(1, 3), width=st.integers(1, 40),
    threads=st.integers(1, 3),
)  # fmt: skip
@torch.no_grad()
def test_each_text_attends_to_itself_only(lengths: list[int], heads: int, width: int, threads: int) -> None:
    torch.set_num_threads(threads)
    projected = torch.randn(sum(lengths), 3 * heads * width)
    found = ops.attention_varlen(projected, lengths, heads, 0.3)
    for seen, text in zip(found.split(lengths), projected.split(lengths), strict=True):
        query, key, value = text.view(len(text), 3, heads, width).permute(1, 2, 0, 3)
        expected = F.scaled_dot_product_attention(query, key, value, scale=0.3)
        alike(seen, expected.transpose(0, 1).flatten(1))


@settings(max_examples=60, deadline=None)
@given(
    texts=st.integers(1, 2), key_heads=st.integers(1, 2), group=st.integers(1, 3), width=st.integers(1, 37),
    queries=st.integers(ops.MIN_QUERIES, 70), length=st.integers(1, 70), causal=st.booleans(),
    threads=st.integers(1, 3),
)  # fmt: skip
@torch.no_grad()
def test_flash_attention(
    texts: int, key_heads: int, group: int, queries: int, length: int, width: int, causal: bool, threads: int
) -> None:
    torch.set_num_threads(threads)
    length = queries if causal else length
    sizes = [(queries, key_heads * group, width), (length, key_heads, width), (length, key_heads, width)]
    query, key, value = (torch.randn(texts, *size).transpose(1, 2) for size in sizes)
    assert ops.supports_attention(query, key, value, causal)
    context = scaled_dot_product_attention(query, key, value, 0.3, causal=causal)
    exact = scaled_dot_product_attention(query.double(), key.double(), value.double(), 0.3, causal=causal)
    assert context.shape == exact.shape
    alike(context, exact.float())


def test_attention_with_gradients_is_left_to_torch() -> None:
    query, key, value = torch.randn(3, 1, 2, 8, 16).unbind(0)
    assert not ops.supports_attention(query, key, value, causal=True)
    with torch.no_grad():
        assert ops.supports_attention(query, key, value, causal=True)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_feed_forward_network_forward_and_backward(name: str, bias: bool) -> None:
    network, found = FeedForward(37, 150, name, bias), []
    given, gradient = torch.randn(2, 3, 67, 37)
    for precision in (torch.float32, torch.float64):
        x = given.to(precision).requires_grad_()
        y = network.to(precision)(x)
        found.append([y.detach(), *torch.autograd.grad(y, [x, *network.parameters()], gradient.to(precision))])
    for ours, torchs in zip(*found, strict=True):
        alike(ours, torchs.float())


def test_what_is_frozen_has_no_gradient() -> None:
    network, x = FeedForward(16, 32, "gelu"), torch.randn(200, 16, requires_grad=True)
    network.up.requires_grad_(False)
    network(x).sum().backward()
    assert network.up.weight.grad is None and network.down.weight.grad is not None and x.grad is not None


def test_unsupported_shapes_use_torch() -> None:
    """To its errors, or to what it does with it."""
    for width in (60, 80):
        with pytest.raises(RuntimeError):
            FeedForward(64, 96, "gelu")(torch.randn(200, width))
    query, key = torch.randn(2, 4, 40, 8), torch.randn(2, 4, 16, 8)
    alike(
        scaled_dot_product_attention(query, key, key, 0.3, causal=True),
        F.scaled_dot_product_attention(query, key, key, is_causal=True, scale=0.3),
    )
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(query, key[:, :3], key[:, :3], 0.3)


def test_hooks_are_called_and_other_activations_work() -> None:
    network, x, heard = FeedForward(16, 32, "gelu"), torch.randn(200, 16), []
    expected = network(x)
    hook = network.up.register_forward_hook(lambda *given: heard.append(given))
    alike(network(x).detach(), expected.detach())
    assert len(heard) == 1
    hook.remove()
    network.activation = nn.ELU()
    alike(network(x).detach(), network.down(F.elu(network.up(x))).detach())


def test_torch_s_defaults_do_not_matter() -> None:
    network, x = FeedForward(16, 32, "gelu"), torch.randn(200, 16)
    expected = network(x).detach()
    torch.set_default_dtype(torch.float64)
    try:
        alike(network(x).detach(), expected)
        with torch.no_grad():
            alike(PackedLinear(network.up)(x), network.up(x))
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_activations_of_small_values_are_exact() -> None:
    """To the last digits of each, not of the largest."""
    x = torch.cat([torch.logspace(-30, 0, 3 * MANY), -torch.logspace(-30, 0, 3 * MANY)])[:, None]
    identity = PackedWeights([as_identity()])
    for activation in ACTIVATIONS.values():
        y = identity(x, activation=activation_id(activation))
        torch.testing.assert_close(y.double(), activation(x.double()), rtol=4e-6, atol=0)


def test_an_older_build_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "built.so").touch()
    assert not bindings.is_outdated(tmp_path / "built.so")
    (tmp_path / "one.c").touch()
    os.utime(tmp_path / "built.so", (1, 1))
    assert bindings.is_outdated(tmp_path / "built.so")


def test_gradients_may_have_any_strides() -> None:
    query, key, value = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in range(3))
    context = scaled_dot_product_attention(query, key, value, 0.3, causal=True)
    given = torch.randn(8, 20, 3, 2).permute(3, 2, 1, 0)
    one, other = (torch.autograd.grad(context, value, each, retain_graph=True)[0] for each in (given, given.clone()))
    assert torch.equal(one, other)
    every, ones = (context.sum(), None), (context, torch.ones_like(context))  # a sum's gradient is one number for all
    one, other = (torch.autograd.grad(of, value, by, retain_graph=True)[0] for of, by in (every, ones))
    assert torch.equal(one, other)


def test_nan_reaches_later_positions_only() -> None:
    query, key, value = (torch.randn(1, 1, 20, 8, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        key[0, 0, 7] = torch.nan
    context = scaled_dot_product_attention(query, key, value, 0.3, causal=True)
    assert context[:, :, :7].isfinite().all() and context[:, :, 7:].isnan().all()
    context.sum().backward()
    assert query.grad is not None and query.grad[:, :, 7:].isnan().all()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("count", [5, MANY, MANY + 5, 5 * MANY + 1])
def test_activations_and_their_gradients(name: str, count: int) -> None:
    """Also far out, of few numbers and of many."""
    x = torch.randn(count) * 4
    x[:4] = torch.tensor([-60.0, 60.0, 0.0, -1e-20])
    found, gradient = [], torch.arange(count).cos()
    for precision in (torch.float32, torch.float64):
        given = x.to(precision).requires_grad_()
        y = ACTIVATIONS[name](given)
        found.append((y, *torch.autograd.grad(y, given, gradient.to(precision))))
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), torchs, rtol=1e-5, atol=2e-6)
    nothing = torch.full((count,), torch.nan, requires_grad=True)
    y = ACTIVATIONS[name](nothing)
    assert y.isnan().all() and (name == "relu" or torch.autograd.grad(y.sum(), nothing)[0].isnan().all())


@torch.no_grad()
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_activations_are_right_everywhere(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 60_001), torch.tensor([-1e30, -200.0, 0.0, 200.0, 1e30])])[:, None]
    nothing = torch.full((9, 1), torch.nan)
    identity, activation = PackedWeights([as_identity()]), ACTIVATIONS[name]
    found, expected = identity(x, activation=activation_id(activation)), activation(x.double())
    assert ((found - expected).abs() <= 1e-6 * expected.abs().clamp(min=1)).all()
    assert identity(nothing, activation=activation_id(activation)).isnan().all()


@torch.no_grad()
def test_scores_far_apart_are_no_trouble() -> None:
    projected = torch.randn(20, 3 * 8) * torch.tensor([300.0, 300.0, 1.0]).repeat_interleave(8)
    query, key, value = projected.view(20, 3, 1, 8).permute(1, 2, 0, 3)
    expected = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    found = ops.attention_varlen(projected, [20], 1, 1.0)
    assert found.isfinite().all()
    alike(found, expected[0])


@torch.no_grad()
def test_nan_propagates() -> None:
    """A broken checkpoint must not give plausible numbers."""
    projected = torch.randn(20, 3 * 8)
    projected[7, 8:16] = torch.nan  # a key
    assert ops.attention_varlen(projected, [20], 1, 1.0).isnan().all()


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", [SmallBatchLinear, PackedLinear, lambda layer: WeightOnlyInt8Linear(layer.weight, layer.bias)]
)
def test_inputs_of_another_width_are_refused(kind: Any) -> None:
    with pytest.raises(RuntimeError):
        kind(linear(20, 16))(torch.randn(2, 30))


@torch.no_grad()
def test_bytes_of_any_weights_for_any_rows() -> None:
    layer = linear(48, 40)
    expected = WeightOnlyInt8Linear(layer.weight, layer.bias)(x := torch.randn(5, 48))
    turned = WeightOnlyInt8Linear(layer.weight.t().contiguous().t(), layer.bias)
    assert torch.equal(turned(x), expected)
    assert torch.equal(turned(x.double()), expected)
    assert turned(x[:0]).shape == (0, 40)
    half = WeightOnlyInt8Linear(layer.weight.bfloat16(), layer.bias)
    assert ((half(x) - expected).norm() / expected.norm()) < 0.02


@torch.no_grad()
def test_weights_made_for_inference_are_read_too() -> None:
    with torch.inference_mode():
        layer, x = linear(20, 30), torch.randn(7, 20)
        alike(PackedLinear(layer)(x), layer(x))


@torch.no_grad()
def test_weights_are_packed_again_when_they_change() -> None:
    layer, x = linear(20, 30), torch.randn(7, 20)
    panels = PackedLinear(layer)
    alike(panels(x), layer(x))
    layer.weight.mul_(2)
    alike(panels(x), layer(x))
    layer.bias.add_(1)
    alike(panels(x), layer(x))
    layer.weight.data = torch.randn_like(layer.weight)
    alike(panels(x), layer(x))
    panels.load_state_dict({"weight": torch.ones(30, 20), "bias": torch.zeros(30)}, assign=True)
    alike(panels(x), x.sum(1, keepdim=True).expand(-1, 30))


def test_gradients_are_computed_if_required() -> None:
    layer, x = linear(64, 80), torch.randn(3, 64)
    for product in (SmallBatchLinear(layer), PackedLinear(layer)):
        layer.weight.grad = None
        product(x).sum().backward()
        grad: Any = layer.weight.grad
        assert isinstance(grad, Tensor) and grad.abs().sum() > 0


def test_they_share_torch_s_threads() -> None:
    """Two sets of threads would be in each other's way."""
    need(sys.platform == "linux", "a machine with Linux")
    say = "import regard.kernels.bindings; print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True, env=dict(os.environ))
    libraries = {line.split()[-1] for line in done.stdout.splitlines() if re.search("lib(gomp|omp|iomp)", line)}
    assert len(libraries) == 1
