"""Deformable convolution equals the definition, and the plain convolution at zero offsets."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers import deformable
from regard.layers.deformable import DeformableConvolution, deformable_convolution

BATCH, INPUTS, OUTPUTS, ROWS, COLUMNS = 2, 3, 5, 11, 7
GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "padding": dict(padding=1),
    "stride": dict(stride=2, padding=2),
    "dilation": dict(dilation=2, padding=3),
    "all": dict(stride=3, padding=2, dilation=2),
}


def made(kernel: tuple[int, int], geometry: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Image, weight, bias, and zero offsets."""
    image = torch.randn(BATCH, INPUTS, ROWS, COLUMNS, dtype=dtype)
    weight = torch.randn(OUTPUTS, INPUTS, *kernel, dtype=dtype)
    bias = torch.randn(OUTPUTS, dtype=dtype)
    rows, columns = F.conv2d(image, weight, **geometry).shape[2:]
    return image, weight, bias, torch.zeros(BATCH, 2 * math.prod(kernel), rows, columns, dtype=dtype)


def pixel(image: Tensor, row: int, column: int) -> Tensor:
    inside = 0 <= row < image.size(1) and 0 <= column < image.size(2)
    return image[:, row, column] if inside else torch.zeros(image.size(0), dtype=image.dtype)


def bilinear(image: Tensor, row: float, column: float) -> Tensor:
    """The mean of all pixels, weighted by max(0, 1 − distance) on each axis. Equations 3 and 4."""
    total = torch.zeros(image.size(0), dtype=image.dtype)
    for r in range(math.floor(row) - 1, math.floor(row) + 3):
        for c in range(math.floor(column) - 1, math.floor(column) + 3):
            weight = max(0.0, 1 - abs(row - r)) * max(0.0, 1 - abs(column - c))
            total = total + weight * pixel(image, r, c)
    return total


def loop_reference(image: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor, **geometry: int) -> Tensor:
    """Equation 2, one number at a time."""
    stride, padding, dilation = (geometry.get(name, default) for name, default in
                                 (("stride", 1), ("padding", 0), ("dilation", 1)))  # fmt: skip
    height, width = weight.shape[2:]
    result = torch.zeros(len(image), len(weight), *offsets.shape[2:], dtype=image.dtype)
    for b in range(len(image)):
        for row in range(offsets.size(2)):
            for column in range(offsets.size(3)):
                total = bias.clone()
                for n in range(height * width):
                    down, right = offsets[b, 2 * n : 2 * n + 2, row, column].tolist()
                    at = row * stride - padding + (n // width) * dilation + down
                    across = column * stride - padding + (n % width) * dilation + right
                    total = total + weight[:, :, n // width, n % width] @ bilinear(image[b], at, across)
                result[b, :, row, column] = total
    return result


@pytest.mark.parametrize("band", [1 << 22, 200], ids=["one band", "many bands"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (3, 5)])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_zero_offsets_give_the_plain_convolution(
    geometry: dict[str, Any], kernel: tuple[int, int], band: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deformable, "BAND", band)
    image, weight, bias, offsets = made(kernel, geometry)
    expected = F.conv2d(image, weight, bias, **geometry)
    result = deformable_convolution(image, offsets, weight, bias, **geometry)
    torch.testing.assert_close(result, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("scale", [0.5, 3.0, 100.0])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_it_equals_the_loop_over_the_definition(geometry: dict[str, Any], scale: float) -> None:
    """Also for offsets of many times the image's size."""
    image, weight, bias, offsets = made((3, 3), geometry, torch.float64)
    offsets = offsets + scale * torch.randn_like(offsets)
    expected = loop_reference(image, offsets, weight, bias, **geometry)
    torch.testing.assert_close(deformable_convolution(image, offsets, weight, bias, **geometry), expected)


@pytest.mark.parametrize("shift", [-30.0, -11.0, -2.0, -1.5, -1.0, -0.25, 0.0, 0.75, 6.5, 7.0, 10.5, 11.0, 11.5, 1e9])
@pytest.mark.parametrize("axis", [0, 1])
def test_offsets_that_leave_the_image_give_zeros(shift: float, axis: int) -> None:
    """A kernel of one pixel, moved along one axis, over the borders of the image."""
    image, weight, bias, offsets = made((1, 1), {}, torch.float64)
    offsets[:, axis] = shift
    result = deformable_convolution(image, offsets, weight, bias)
    torch.testing.assert_close(result, loop_reference(image, offsets, weight, bias))
    if abs(shift) >= ROWS:
        assert torch.equal(result, bias[:, None, None].expand_as(result))


def test_infinite_offsets_are_outside_and_nan_stays_nan() -> None:
    image, weight, bias, offsets = made((3, 3), {"padding": 1})
    offsets[0] = torch.inf
    offsets[1, 4, 2, 3] = torch.nan
    result = deformable_convolution(image, offsets, weight, bias, padding=1)
    assert torch.equal(result[0], bias[:, None, None].expand_as(result[0]))
    is_nan = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    is_nan[2, 3] = True
    assert torch.equal(result[1].isnan().all(0), is_nan) and torch.equal(result[1].isnan().any(0), is_nan)


def test_constant_offsets_are_a_dilated_convolution() -> None:
    """Offsets of (dilation − 1) · kernel position: what a deformable convolution can learn."""
    image, weight, bias, offsets = made((3, 3), {"padding": 1})
    steps = torch.cartesian_prod(torch.arange(-1, 2), torch.arange(-1, 2)).flatten()
    offsets = offsets + 2 * steps[:, None, None]
    expected = F.conv2d(image, weight, bias, padding=3, dilation=3)
    result = deformable_convolution(image, offsets, weight, bias, padding=1)
    torch.testing.assert_close(result, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("band", [1 << 22, 100], ids=["one band", "many bands"])
def test_gradients(band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of image, offsets, weight and bias, in float64; offsets not at whole pixels, where there is no derivative."""
    monkeypatch.setattr(deformable, "BAND", band)
    image = torch.randn(2, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    whole = torch.randint(-3, 4, (2, 18, 3, 2)).double()
    offsets = (whole + 0.1 + 0.8 * torch.rand(2, 18, 3, 2, dtype=torch.float64)).requires_grad_()

    def convolve(*inputs: Tensor) -> Tensor:
        return deformable_convolution(*inputs, stride=2, padding=1)

    assert convolve(image, offsets, weight, bias).shape == (2, 3, 3, 2)
    assert torch.autograd.gradcheck(convolve, (image, offsets, weight, bias))


def test_the_layer_begins_as_a_plain_convolution_and_learns_offsets() -> None:
    layer = DeformableConvolution(INPUTS, OUTPUTS, 3, stride=2, padding=1)
    image = torch.randn(BATCH, INPUTS, ROWS, COLUMNS)
    expected = layer.convolution(image)
    torch.testing.assert_close(layer(image), expected, atol=1e-5 * float(expected.detach().abs().max()), rtol=0)
    layer(image).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_a_layer_learns_where_to_sample() -> None:
    """A kernel of one pixel learns to sample half a pixel below and one pixel to the right."""
    torch.manual_seed(0)
    layer = DeformableConvolution(1, 1, 1, bias=False)
    torch.nn.init.ones_(layer.convolution.weight)
    layer.convolution.weight.requires_grad_(False)
    ramp = torch.arange(9.0)[:, None] * 0.3 + torch.arange(13.0) ** 2 * 0.1
    image = ramp[None, None]
    expected = (image[..., :-1, 1:] + image[..., 1:, 1:]) / 2
    optimizer = torch.optim.Adam([layer.offsets.bias], lr=0.05)  # type: ignore[list-item]
    for _ in range(400):
        optimizer.zero_grad()
        loss: Any = F.mse_loss(layer(image)[..., :-1, :-1], expected)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1e-4


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of a band has more values than stated, forward or backward."""
    monkeypatch.setattr(deformable, "BAND", 1 << 12)
    largest = 0
    sampled = deformable._sample

    def watched(pixels: Tensor, positions: Tensor) -> Tensor:
        nonlocal largest
        values = sampled(pixels, positions)
        largest = max(largest, values.numel())
        return values

    monkeypatch.setattr(deformable, "_sample", watched)
    saved: list[int] = []
    image = torch.randn(BATCH, INPUTS, 41, 37, requires_grad=True)
    layer = DeformableConvolution(INPUTS, OUTPUTS, 3, padding=1)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda kept: (saved.append(kept.numel()), kept)[1], lambda kept: kept
    ):
        output = layer(image)
    output.sum().backward()
    columns = BATCH * INPUTS * 9 * 41 * 37
    assert 0 < largest <= 1 << 12 < columns
    assert max(saved) < columns
