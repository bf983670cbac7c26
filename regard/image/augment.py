"""Data augmentation of images: each change is a pure function of (seed, sample, epoch), so that resume is exact.

stored image ─▶ crop ─▶ flip ─▶ RandAugment ─▶ erasing ─▶ mixup or CutMix with another image of the batch

A sample that is repeated in a batch is changed in another way each time. Touvron et al. 2021, table 9, use all these.

Shapes: images (batch, channels, height, width), values from 0 to 255; draws (batch, DRAWS), uniform in [0, 1).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.options import ImageAugmentOptions
from regard.image.rand_augment import OPERATIONS, rand_augment
from regard.image.transforms import centre_crop

ASPECT_RATIOS = (3 / 4, 4 / 3)  # of random resized crops: Szegedy et al. 2015
ERASED_AREA = (0.02, 1 / 3)  # share of the image: Zhong et al. 2020, section 3.2
ERASED_ASPECTS = (0.3, 10 / 3)

# Which columns of the draws each augmentation uses; RandAugment's are the last ones, two for each operation.
CROP, SHIFT, FLIP, ERASE, MIX = slice(0, 4), slice(4, 6), 6, slice(7, 15), slice(15, 18)
FIRST_OPERATION = 18


class Mixing(NamedTuple):
    """How each image of a batch is mixed with its partner: the box of CutMix, and the share of its own label."""

    partner: Tensor  # (batch)
    share: Tensor  # (batch): of the image itself
    boxes: Tensor  # (batch, 4): top, left, bottom, right; empty for mixup
    by_box: Tensor  # (batch): whether CutMix and not mixup


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of a run; `seed` is that of the run."""

    options: ImageAugmentOptions
    seed: int

    def repeat(self, samples: Sequence[int]) -> list[int]:
        """Repeated augmentation: fewer different samples, each several times. Hoffer et al. 2020."""
        if self.options.repeats == 1:
            return list(samples)
        distinct = samples[: -(-len(samples) // self.options.repeats)]
        return [sample for sample in distinct for _ in range(self.options.repeats)][: len(samples)]

    def __call__(
        self, stored: Sequence[np.ndarray], samples: Sequence[int], epoch: int, size: tuple[int, int]
    ) -> Tensor:
        """Stored images (height, width, channels) as augmented ones of one size."""
        draws = self._draws(samples, epoch)
        images = self._crop(stored, draws[:, CROP], size)
        uniform = torch.from_numpy(draws).float().clamp(max=1 - 2**-24)  # in float32 the largest would be rounded to 1
        options = self.options
        if options.crop_padding:
            images = shift(images, uniform[:, SHIFT], options.crop_padding)
        if options.horizontal_flip:
            flipped = uniform[:, FLIP] < options.horizontal_flip
            images = torch.where(flipped[:, None, None, None], images.flip(3), images)
        for operation in range(options.rand_augment):
            column = FIRST_OPERATION + 2 * operation
            choices = (uniform[:, column] * len(OPERATIONS)).long()
            signs = torch.where(uniform[:, column + 1] < 0.5, -1.0, 1.0)
            images = rand_augment(images, choices, signs, options.rand_augment_magnitude)
        if options.random_erasing:
            images = erase(images, uniform[:, ERASE], options.random_erasing)
        return self._mix(images, self.mixing(samples, epoch, size))

    def mix_targets(self, targets: Tensor, samples: Sequence[int], epoch: int, size: tuple[int, int]) -> Tensor:
        """Targets (batch, …) of float type, mixed as the images are."""
        mixing = self.mixing(samples, epoch, size)
        if mixing is None:
            return targets
        share = mixing.share.view(-1, *(1,) * (targets.dim() - 1))
        return share * targets + (1 - share) * targets[mixing.partner]

    @property
    def mixes(self) -> bool:
        return bool(self.options.mixup or self.options.cutmix)

    def mixing(self, samples: Sequence[int], epoch: int, size: tuple[int, int]) -> Mixing | None:
        """Mixup (Zhang et al. 2018) or CutMix (Yun et al. 2019): with both, each for half of the images."""
        if not self.mixes:
            return None
        mixup, cutmix = self.options.mixup, self.options.cutmix
        partner = torch.arange(len(samples)).flip(0)
        shares, boxes, kinds = [], [], []
        for rng in self._generators(samples, epoch):
            _, centre_y, centre_x = (uniform := rng.random(MIX.stop)[MIX])
            by_box = cutmix > 0 and (not mixup or uniform[0] < 0.5)
            alpha = cutmix if by_box else mixup
            share = rng.beta(alpha, alpha)
            box = cutmix_box(share, centre_y, centre_x, size) if by_box else (0, 0, 0, 0)
            area = (box[2] - box[0]) * (box[3] - box[1])
            shares.append(1 - area / (size[0] * size[1]) if by_box else share)
            boxes.append(box)
            kinds.append(by_box)
        return Mixing(partner, torch.tensor(shares, dtype=torch.float32), torch.tensor(boxes), torch.tensor(kinds))

    def _mix(self, images: Tensor, mixing: Mixing | None) -> Tensor:
        if mixing is None:
            return images
        other = images[mixing.partner]
        share = torch.where(mixing.by_box, 1.0, mixing.share)[:, None, None, None]
        return torch.where(_inside(mixing.boxes, images), other, share * images + (1 - share) * other)

    def _generators(self, samples: Sequence[int], epoch: int) -> list[np.random.Generator]:
        """A generator for each sample; the repetitions of one have their own."""
        seen: Counter[int] = Counter()
        generators = []
        for sample in samples:
            generators.append(np.random.default_rng((self.seed, epoch, sample, seen[sample])))
            seen[sample] += 1
        return generators

    def _draws(self, samples: Sequence[int], epoch: int) -> np.ndarray:
        count = FIRST_OPERATION + 2 * self.options.rand_augment
        return np.stack([rng.random(count) for rng in self._generators(samples, epoch)])

    def _crop(self, stored: Sequence[np.ndarray], draws: np.ndarray, size: tuple[int, int]) -> Tensor:
        """A random part of each image in the size of the input, or the centre."""
        least = self.options.min_crop_area
        if least < 1:
            crops = [random_resized_crop(*pair, least, size) for pair in zip(stored, draws, strict=True)]
            return torch.stack(crops)
        return torch.from_numpy(np.stack([centre_crop(image, *size) for image in stored])).permute(0, 3, 1, 2).float()


def random_resized_crop(image: np.ndarray, draws: np.ndarray, least: float, size: tuple[int, int]) -> Tensor:
    """A part of random area (at least `least` of the image), aspect and position, resized. Szegedy et al. 2015."""
    height, width = image.shape[:2]
    area = height * width * (least + (1 - least) * draws[0])
    low, high = np.log(ASPECT_RATIOS)
    ratio = np.exp(low + (high - low) * draws[1])
    rows = int(np.clip(round((area / ratio) ** 0.5), 1, height))
    columns = int(np.clip(round((area * ratio) ** 0.5), 1, width))
    top = int(draws[2] * (height - rows + 1))
    left = int(draws[3] * (width - columns + 1))
    part = torch.from_numpy(image[top : top + rows, left : left + columns].copy()).permute(2, 0, 1).float()
    return F.interpolate(part[None], size, mode="bilinear", antialias=True, align_corners=False)[0]


def shift(images: Tensor, draws: Tensor, padding: int) -> Tensor:
    """A random crop of the image with black padding: translations of a few pixels. He et al. 2016, section 4.2."""
    height, width = images.shape[2:]
    padded = F.pad(images, (padding,) * 4)
    offsets = (draws * (2 * padding + 1)).long()
    rows = offsets[:, :1] + torch.arange(height)
    columns = offsets[:, 1:] + torch.arange(width)
    index = torch.arange(len(images))[:, None, None]
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def erase(images: Tensor, draws: Tensor, probability: float) -> Tensor:
    """A random box of some images becomes one random colour. Zhong et al. 2020."""
    height, width = images.shape[2:]
    chosen, area, ratio, top, left, *colour = draws.unbind(1)
    area = (ERASED_AREA[0] + (ERASED_AREA[1] - ERASED_AREA[0]) * area) * height * width
    low, high = np.log(ERASED_ASPECTS)
    ratio = torch.exp(low + (high - low) * ratio)
    rows = (area / ratio).sqrt().round().clamp(1, height)
    columns = (area * ratio).sqrt().round().clamp(1, width)
    top = (top * (height - rows + 1)).floor()
    left = (left * (width - columns + 1)).floor()
    boxes = torch.stack([top, left, top + rows, left + columns], 1).long()
    fill = 255 * torch.stack(colour[: images.size(1)], 1)[:, :, None, None]
    erased = _inside(boxes, images) & (chosen < probability)[:, None, None, None]
    return torch.where(erased, fill, images)


def cutmix_box(share: float, centre_y: float, centre_x: float, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box of (1 − share) of the area around a random centre, within the image. Yun et al. 2019, equation 2."""
    height, width = size
    side = (1 - share) ** 0.5
    top, bottom = (round(height * (centre_y + half * side)) for half in (-0.5, 0.5))
    left, right = (round(width * (centre_x + half * side)) for half in (-0.5, 0.5))
    return max(top, 0), max(left, 0), min(bottom, height), min(right, width)


def _inside(boxes: Tensor, images: Tensor) -> Tensor:
    """Whether each pixel is inside the box of its image, (batch, 1, height, width)."""
    rows = torch.arange(images.size(2))[None, :, None]
    columns = torch.arange(images.size(3))[None, None, :]
    top, left, bottom, right = (edge[:, None, None] for edge in boxes.unbind(1))
    return ((rows >= top) & (rows < bottom) & (columns >= left) & (columns < right))[:, None]
