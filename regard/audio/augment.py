"""Data augmentation of recordings: each change is a pure function of (seed, sample, epoch), so that resume is exact.

samples ─▶ speed perturbation ─▶ features ─▶ filter ─▶ SpecAugment

The features of all speeds are prepared once, and each epoch uses one of them.

Shapes: samples (length); frames (length, bins).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.audio.read import soxr
from regard.config.options import AudioAugmentOptions

SPEED, FILTER, MASK = range(3)  # each change has random numbers of its own

FILTER_POINTS = 5  # evenly spaced bins with a random gain; between them it is interpolated

SPEED_DIGITS = 1000  # a speed is resampling by a fraction of this denominator


def change_speed(samples: np.ndarray, speed: float) -> np.ndarray:
    """A recording played at another speed, which changes its length and its pitch. Ko et al. 2015."""
    if speed == 1:
        return samples
    return soxr().resample(samples, round(speed * SPEED_DIGITS), SPEED_DIGITS)


class Speeds(Protocol):
    """A dataset with the features of each recording at all speeds."""

    def frames(self, index: int, speed: int, /) -> Tensor: ...


@dataclass(frozen=True)
class AudioAugmentation:
    """The augmentation of a run; `seed` is that of the run."""

    options: AudioAugmentOptions
    seed: int

    @property
    def speeds(self) -> tuple[float, ...]:
        return self.options.speeds or (1.0,)

    def speed(self, sample: int, epoch: int) -> int:
        """Which of the speeds a sample has."""
        return int(self._generator(sample, epoch, SPEED).integers(len(self.speeds)))

    def frames(self, dataset: Speeds, sample: int, epoch: int) -> Tensor:
        """The augmented features of a training sample."""
        frames = dataset.frames(sample, self.speed(sample, epoch))
        return self.mask(self.filter(frames, sample, epoch), sample, epoch)

    def filter(self, frames: Tensor, sample: int, epoch: int) -> Tensor:
        """A random frequency response, as of another microphone: gains between some bins. Nam et al. 2022."""
        if not self.options.filter_gain:
            return frames
        gains = self._generator(sample, epoch, FILTER).uniform(-1, 1, (1, 1, FILTER_POINTS)) * self.options.filter_gain
        response = F.interpolate(torch.from_numpy(gains).float(), frames.size(1), mode="linear", align_corners=True)
        return frames + response[0, 0]

    def mask(self, frames: Tensor, sample: int, epoch: int) -> Tensor:
        """Random bands of bins and spans of frames are replaced by the mean of their bins. Park et al. 2019."""
        options = self.options
        if not options.frequency_masks and not options.time_masks:
            return frames
        rng = self._generator(sample, epoch, MASK)
        masked = frames.clone()
        means = frames.mean(0)
        length, bins = frames.shape
        for _ in range(options.frequency_masks):
            begin, end = _span(rng, bins, min(options.frequency_mask_width, bins))
            masked[:, begin:end] = means[begin:end]
        max_length = min(options.time_mask_width, int(options.time_mask_share * length))
        for _ in range(options.time_masks):
            begin, end = _span(rng, length, max_length)
            masked[begin:end] = means
        return masked

    def _generator(self, sample: int, epoch: int, change: int) -> np.random.Generator:
        """The random numbers of one change of a sample."""
        return np.random.default_rng((self.seed, epoch, sample, change))


def _span(rng: np.random.Generator, size: int, max_length: int) -> tuple[int, int]:
    """A span of 0 to `max_length` positions of `size`, uniformly."""
    length = int(rng.integers(max_length + 1))
    begin = int(rng.integers(size - length + 1))
    return begin, begin + length
