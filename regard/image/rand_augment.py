"""RandAugment: random operations of one magnitude. Cubuk et al. 2020, section 3.

Shapes: images (batch, channels, height, width), values from 0 to 255; choices, signs (batch).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = 128.0  # of pixels that come from outside

MAX_MAGNITUDE = 10.0
MAX_DEGREES = 30.0
MAX_SHEAR = 0.3
MAX_TRANSLATION = 0.3  # of the side
MAX_FACTOR = 0.9  # by which colour, contrast, brightness and sharpness change
POSTERIZED_BITS = 4

Operation = Callable[[Tensor, Tensor], Tensor]  # images, strength of each from −1 to 1


def rand_augment(images: Tensor, choices: Tensor, signs: Tensor, magnitude: float) -> Tensor:
    """One operation on each image: that of its index in `OPERATIONS`, in the direction of its sign."""
    strength = signs * (magnitude / MAX_MAGNITUDE)
    changed = images.clone()
    for index, operation in enumerate(OPERATIONS):
        rows = (choices == index).nonzero()[:, 0]
        if len(rows):
            changed[rows] = operation(images[rows], strength[rows]).clamp(0, 255)
    return changed


# ── geometry ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Each output pixel is read at an affine function (2 × 3) of its position, in pixels from the centre."""
    height, width = images.shape[2:]
    scale = torch.tensor([width / 2, height / 2])
    normalised = matrices.clone()
    normalised[:, :, :2] = matrices[:, :, :2] * (scale[None, None, :] / scale[None, :, None])
    normalised[:, :, 2] = matrices[:, :, 2] / scale
    grid = F.affine_grid(normalised, list(images.shape), align_corners=False)
    return F.grid_sample(images - GREY, grid, align_corners=False) + GREY


def _affine(strength: Tensor, entries: dict[tuple[int, int], Tensor]) -> Tensor:
    matrices = torch.eye(2, 3).repeat(len(strength), 1, 1)
    for (row, column), values in entries.items():
        matrices[:, row, column] = values
    return matrices


def rotate(images: Tensor, strength: Tensor) -> Tensor:
    angle = strength * math.radians(MAX_DEGREES)
    cos, sin = angle.cos(), angle.sin()
    return warp(images, _affine(strength, {(0, 0): cos, (0, 1): -sin, (1, 0): sin, (1, 1): cos}))


def shear_x(images: Tensor, strength: Tensor) -> Tensor:
    return warp(images, _affine(strength, {(0, 1): strength * MAX_SHEAR}))


def shear_y(images: Tensor, strength: Tensor) -> Tensor:
    return warp(images, _affine(strength, {(1, 0): strength * MAX_SHEAR}))


def translate_x(images: Tensor, strength: Tensor) -> Tensor:
    return warp(images, _affine(strength, {(0, 2): strength * MAX_TRANSLATION * images.shape[3]}))


def translate_y(images: Tensor, strength: Tensor) -> Tensor:
    return warp(images, _affine(strength, {(1, 2): strength * MAX_TRANSLATION * images.shape[2]}))


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def identity(images: Tensor, strength: Tensor) -> Tensor:
    return images


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """The darkest value of each channel becomes 0, the brightest 255."""
    low = images.amin((2, 3), keepdim=True)
    span = images.amax((2, 3), keepdim=True) - low
    return torch.where(span > 0, (images - low) * 255 / span.clamp(min=1e-6), images)


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """A uniform histogram of each channel."""
    planes = images.flatten(0, 1).flatten(1).round().long()
    offsets = 256 * torch.arange(len(planes))[:, None]
    counts = torch.bincount((planes + offsets).flatten(), minlength=256 * len(planes)).view(-1, 256)
    last = counts.gather(1, planes.amax(1, keepdim=True))  # the brightest value stays 255
    step = (counts.sum(1, keepdim=True) - last) // 255
    table = (step // 2 + counts.cumsum(1) - counts) // step.clamp(min=1)
    equalized = table.clamp(max=255).gather(1, planes).view_as(images).float()
    return torch.where((step > 0).view(*images.shape[:2], 1, 1), equalized, images)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Values above a threshold are inverted."""
    threshold = 256 * (1 - strength.abs())[:, None, None, None]
    return torch.where(images < threshold, images, 255 - images)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Fewer bits."""
    step = 2.0 ** (strength.abs() * POSTERIZED_BITS).round()[:, None, None, None]
    return (images / step).floor() * step


def _blend(images: Tensor, degenerate: Tensor, strength: Tensor) -> Tensor:
    """Away from the degenerate image, or towards it."""
    return degenerate + (images - degenerate) * (1 + MAX_FACTOR * strength)[:, None, None, None]


def _luma(images: Tensor) -> Tensor:
    """ITU-R BT.601."""
    if images.size(1) == 1:
        return images
    return (images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)


def colour(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(images, _luma(images).expand_as(images), strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(images, _luma(images).mean((1, 2, 3), keepdim=True).expand_as(images), strength)


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(images, torch.zeros_like(images), strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    planes = F.pad(images, (1, 1, 1, 1), mode="replicate")
    smooth = F.conv2d(planes, kernel.expand(images.size(1), 1, 3, 3), groups=images.size(1))
    return _blend(images, smooth, strength)


OPERATIONS: tuple[Operation, ...] = (
    identity, autocontrast, equalize, rotate, solarize, colour, posterize,
    contrast, brightness, sharpness, shear_x, shear_y, translate_x, translate_y,
)  # fmt: skip
