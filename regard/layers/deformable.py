"""Deformable convolution: each kernel position samples the image at a predicted offset. Dai et al. 2017, section 2.1.

    y(p) = Σₙ w(pₙ) · x(p + pₙ + Δpₙ)        pₙ = kernel position n, Δpₙ(p) = its offset, bilinear between pixels

The image is 0 outside. At zero offsets this is the plain convolution.

Shapes, throughout:
    image      (batch, inputs, height, width)
    offsets    (batch, 2 · kernel positions, rows, columns)     pixels down and right, for each kernel position
    weight     (outputs, inputs, kernel rows, kernel columns)
    positions  (batch, kernel positions, output pixels, 2)      row and column in the image
    pixels     (batch, height + 3, width + 3, inputs)           with zeros before and after the image
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BAND = 1 << 20  # values that are sampled at a time


class DeformableConvolution(nn.Module):
    """A convolution whose sampling positions are predicted from the image by another convolution."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = True,
    ):
        """Offsets are 0 before training, as in the paper, so that it begins as a plain convolution."""
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=bias)
        self.offsets = nn.Conv2d(inputs, 2 * kernel**2, kernel, stride, padding, dilation)
        nn.init.zeros_(self.offsets.weight)
        assert self.offsets.bias is not None
        nn.init.zeros_(self.offsets.bias)

    def forward(self, image: Tensor) -> Tensor:
        plain = self.convolution
        (stride, *_), (padding, *_), (dilation, *_) = plain.stride, plain.padding, plain.dilation
        offsets = self.offsets(image)
        return deformable_convolution(image, offsets, plain.weight, plain.bias, stride, int(padding), dilation)


def deformable_convolution(
    image: Tensor,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> Tensor:
    """Equation 2, for the given offsets.

    Memory: a few copies of image and offsets (and of their gradients), and about 8 tensors of BAND values, at any size.
    """
    positions = sampling_positions(offsets, weight.shape[-2:], stride, padding, dilation)
    pixels = F.pad(image, (1, 2, 1, 2)).permute(0, 2, 3, 1).contiguous()
    output: Any = _Deformable.apply(pixels, positions, weight.flatten(2).transpose(1, 2))
    output = output.mT.unflatten(2, offsets.shape[2:])
    return output if bias is None else output + bias[:, None, None]


def sampling_positions(
    offsets: Tensor, kernel: torch.Size, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """p + pₙ + Δpₙ for every output pixel p and kernel position n."""
    rows, columns = offsets.shape[-2:]
    start = [stride * torch.arange(size, device=offsets.device) - padding for size in (rows, columns)]
    steps = [dilation * torch.arange(size, device=offsets.device) for size in kernel]
    regular = torch.cartesian_prod(*start) + torch.cartesian_prod(*steps)[:, None]
    return regular + offsets.flatten(2).unflatten(1, (-1, 2)).transpose(2, 3)


class _Deformable(torch.autograd.Function):
    """Samples and multiplies by weights (outputs, kernel positions, inputs), in bands of output pixels.

    The samples are not kept for the backward pass: it takes them again.
    """

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, positions: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(pixels, positions, weight)
        bands = [_multiply(_sample(pixels, band), weight) for band in _bands(positions, weight)]
        return torch.cat(bands, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pixels, positions, weight = ctx.saved_tensors
        (of_output,) = gradients
        of_pixels = torch.zeros_like(pixels)
        of_positions = torch.empty_like(positions)
        of_weight = torch.zeros_like(weight)
        start = 0
        for band in _bands(positions, weight):
            rows = slice(start, start + band.size(2))
            of_band = of_output[:, rows]
            of_weight += torch.einsum("bno,bknc->okc", of_band, _sample(pixels, band))
            of_sample = torch.einsum("bno,okc->bknc", of_band, weight)
            of_positions[:, :, rows] = _sample_backward(pixels, band, of_sample, of_pixels)
            start = rows.stop
        return of_pixels, of_positions, of_weight


def _bands(positions: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return positions.split(max(1, BAND // (weight[0].numel() * len(positions))), 2)


def _multiply(samples: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bknc,okc->bno", samples, weight)


class _Corner(NamedTuple):
    """One of the four pixels around each position: where it is, how near, and how that changes with the position."""

    index: Tensor  # of its row in the flattened pixels
    vertical: Tensor
    horizontal: Tensor
    signs: tuple[int, int]


def _corners(pixels: Tensor, positions: Tensor) -> Iterator[_Corner]:
    first = positions.floor()
    down, right = (positions - first).unbind(-1)
    row, column = first.nan_to_num().long().unbind(-1)  # a position that is NaN gives NaN, by its fraction
    batch = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    _, height, width, _ = pixels.shape
    index = (batch * height + row + 1) * width + column + 1
    yield _Corner(index, 1 - down, 1 - right, (-1, -1))
    yield _Corner(index + 1, 1 - down, right, (-1, 1))
    yield _Corner(index + width, down, 1 - right, (1, -1))
    yield _Corner(index + width + 1, down, right, (1, 1))


def _clamp(pixels: Tensor, positions: Tensor) -> Tensor:
    """Positions farther outside than one pixel are moved to where everything around is 0."""
    limits = positions.new_tensor([pixels.size(1) - 3, pixels.size(2) - 3])
    return positions.clamp(-1).minimum(limits)


def _sample(pixels: Tensor, positions: Tensor) -> Tensor:
    """Bilinear interpolation at the positions: (batch, kernel positions, output pixels, inputs)."""
    samples = pixels.new_zeros(*positions.shape[:-1], pixels.size(-1))
    for corner in _corners(pixels, _clamp(pixels, positions)):
        samples.addcmul_(_take(pixels, corner.index), (corner.vertical * corner.horizontal)[..., None])
    return samples


def _sample_backward(pixels: Tensor, positions: Tensor, of_sample: Tensor, of_pixels: Tensor) -> Tensor:
    """The gradient of the positions; adds that of the pixels to `of_pixels`."""
    clamped = _clamp(pixels, positions)
    down = torch.zeros_like(positions[..., 0])
    right = torch.zeros_like(down)
    for corner in _corners(pixels, clamped):
        share = (of_sample * _take(pixels, corner.index)).sum(-1)
        down += corner.signs[0] * corner.horizontal * share
        right += corner.signs[1] * corner.vertical * share
        nearness = (corner.vertical * corner.horizontal)[..., None]
        of_pixels.flatten(0, 2).index_add_(0, corner.index.flatten(), (nearness * of_sample).flatten(0, 2))
    return torch.stack([down, right], -1) * (positions == clamped)


def _take(pixels: Tensor, index: Tensor) -> Tensor:
    return pixels.flatten(0, 2).index_select(0, index.flatten()).view(*index.shape, -1)
