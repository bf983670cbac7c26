"""The kernels in C compute what torch computes, for every shape, whatever is left over at the edges."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import need
from test_laws import alike
from torch import Tensor, nn

from regard.layers.activations import ACTIVATIONS
from regard.runtime import native
from regard.runtime.products import Few, Int8, Laid, Panels

SIZES = st.integers(1, 53)
BENT = [None, *ACTIVATIONS.values()]


@pytest.fixture(autouse=True, scope="module")
def ours() -> None:
    need(native.built(), "the kernels were not built: install a C compiler (gcc), then regard anew")


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(inputs * 1000 + outputs)
    return nn.Linear(inputs, outputs, bias)


@settings(max_examples=60, deadline=None)
@given(rows=SIZES, inputs=SIZES, outputs=SIZES, bias=st.booleans(), threads=st.integers(1, 3))
@torch.no_grad()
def test_a_few_rows(rows: int, inputs: int, outputs: int, bias: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    layer, x = linear(inputs, outputs, bias), torch.randn(rows, inputs)
    assert native.few(x)
    alike(Few(layer)(x), layer(x))
    found, scale = Int8(layer.weight, layer.bias)(x), layer.weight.abs().amax(1, keepdim=True) / 127
    alike(found, F.linear(x, (layer.weight / scale).round() * scale, layer.bias))


@torch.no_grad()
@pytest.mark.parametrize("outputs", [13, 5000])
def test_bytes_for_many_rows_are_the_same_bytes(outputs: int) -> None:
    layer, x = linear(43, outputs), torch.randn(3 * native.FEW, 43)
    product = Int8(layer.weight, layer.bias)
    alike(product(x), torch.cat([product(part) for part in x.split(native.FEW)]))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 700), inputs=st.integers(1, 900), outputs=SIZES, bend=st.sampled_from(BENT),
    add=st.booleans(), threads=st.integers(1, 3),
)  # fmt: skip
@torch.no_grad()
def test_many_rows(rows: int, inputs: int, outputs: int, bend: nn.Module | None, add: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    layer, x = linear(inputs, outputs), torch.randn(rows, inputs)
    added = torch.randn(rows, outputs) if add else None
    found = Laid([layer])(x, added, 0 if bend is None else native.bend(bend) or 0)
    expected = layer(x) if added is None else layer(x) + added
    alike(found, expected if bend is None else bend(expected))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), heads=st.integers(1, 3), width=st.integers(1, 40),
    threads=st.integers(1, 3),
)  # fmt: skip
@torch.no_grad()
def test_each_text_looks_at_itself(lengths: list[int], heads: int, width: int, threads: int) -> None:
    torch.set_num_threads(threads)
    projected = torch.randn(sum(lengths), 3 * heads * width)
    found = native.looked(projected, lengths, heads, 0.3)
    for seen, text in zip(found.split(lengths), projected.split(lengths), strict=True):
        query, key, value = text.view(len(text), 3, heads, width).permute(1, 2, 0, 3)
        expected = F.scaled_dot_product_attention(query, key, value, scale=0.3)
        alike(seen, expected.transpose(0, 1).flatten(1))


@torch.no_grad()
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_bends_is_right_everywhere(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 60_001), torch.tensor([-1e30, -200.0, 0.0, 200.0, 1e30])])[:, None]
    nothing = torch.full((9, 1), torch.nan)
    one, bend = nn.Linear(1, 1), ACTIVATIONS[name]
    one.weight.fill_(1.0)
    one.bias.fill_(0.0)
    found, expected = Laid([one])(x, bend=native.bend(bend) or 0), bend(x)
    assert ((found - expected).abs() <= 1e-6 * expected.abs().clamp(min=1)).all()
    assert Laid([one])(nothing, bend=native.bend(bend) or 0).isnan().all()


@torch.no_grad()
def test_scores_far_apart_are_no_trouble() -> None:
    projected = torch.randn(20, 3 * 8) * torch.tensor([300.0, 300.0, 1.0]).repeat_interleave(8)
    query, key, value = projected.view(20, 3, 1, 8).permute(1, 2, 0, 3)
    expected = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    found = native.looked(projected, [20], 1, 1.0)
    assert found.isfinite().all()
    alike(found, expected[0])


@torch.no_grad()
def test_what_is_no_number_shows() -> None:
    """A broken checkpoint must not give plausible numbers."""
    projected = torch.randn(20, 3 * 8)
    projected[7, 8:16] = torch.nan  # a key
    assert native.looked(projected, [20], 1, 1.0).isnan().all()


@torch.no_grad()
@pytest.mark.parametrize("kind", [Few, Panels, lambda layer: Int8(layer.weight, layer.bias)])
def test_inputs_of_another_width_are_refused(kind: Any) -> None:
    with pytest.raises(RuntimeError):
        kind(linear(20, 16))(torch.randn(2, 30))


@torch.no_grad()
def test_bytes_of_any_weights_for_any_rows() -> None:
    layer = linear(48, 40)
    expected = Int8(layer.weight, layer.bias)(x := torch.randn(5, 48))
    turned = Int8(layer.weight.t().contiguous().t(), layer.bias)
    assert torch.equal(turned(x), expected)
    assert torch.equal(turned(x.double()), expected)
    assert turned(x[:0]).shape == (0, 40)
    half = Int8(layer.weight.bfloat16(), layer.bias)
    assert ((half(x) - expected).norm() / expected.norm()) < 0.02


@torch.no_grad()
def test_weights_made_for_inference_are_read_too() -> None:
    with torch.inference_mode():
        layer, x = linear(20, 30), torch.randn(7, 20)
        alike(Panels(layer)(x), layer(x))


@torch.no_grad()
def test_weights_are_laid_out_anew_when_they_change() -> None:
    layer, x = linear(20, 30), torch.randn(7, 20)
    panels = Panels(layer)
    alike(panels(x), layer(x))
    layer.weight.mul_(2)
    alike(panels(x), layer(x))
    layer.bias.add_(1)
    alike(panels(x), layer(x))
    layer.weight.data = torch.randn_like(layer.weight)
    alike(panels(x), layer(x))
    panels.load_state_dict({"weight": torch.ones(30, 20), "bias": torch.zeros(30)}, assign=True)
    alike(panels(x), x.sum(1, keepdim=True).expand(-1, 30))


def test_who_wants_gradients_gets_them() -> None:
    layer, x = linear(64, 80), torch.randn(3, 64)
    for product in (Few(layer), Panels(layer)):
        layer.weight.grad = None
        product(x).sum().backward()
        grad: Any = layer.weight.grad
        assert isinstance(grad, Tensor) and grad.abs().sum() > 0


def test_they_share_torch_s_threads() -> None:
    """Two sets of threads would be in each other's way."""
    need(sys.platform == "linux", "a machine with Linux")
    say = "from regard.runtime import native; print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True, env=dict(os.environ))
    libraries = {line.split()[-1] for line in done.stdout.splitlines() if re.search("lib(gomp|omp|iomp)", line)}
    assert len(libraries) == 1
