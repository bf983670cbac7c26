"""Features of speech in torch: log-mel filterbanks, Whisper's scaling of them, and MFCC.

samples ─▶ frames × Hann window ─▶ |FFT|² ─▶ mel filters ─▶ log ─▶ log-mel ─▶ DCT ─▶ MFCC

Frame i is centred at sample i · hop; the recording is continued by its reflection. There are length // hop frames.

Shapes: samples (length); features (frames, bins).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.audio.read import MAX_RATE, MIN_RATE
from regard.errors import UserError

Kind = Literal["log_mel", "mfcc", "whisper", "waveform"]
KINDS: tuple[Kind, ...] = ("log_mel", "mfcc", "whisper", "waveform")
MelScale = Literal["slaney", "htk"]
Normalisation = Literal["none", "bin", "recording"]

FLOOR = 1e-10  # of the energy in a filter, before its logarithm
VARIANCE_FLOOR = 1e-7  # of a recording that is normalised: Baevski et al. 2020 as published
WHISPER_RANGE = 80.0  # decibels: Radford et al. 2022 as published
MAX_RANGE = 200.0

FRAMES_AT_ONCE = 4096  # transformed together, so that memory does not grow with a recording's spectrum

LIMITS = {"rate": (MIN_RATE, MAX_RATE), "bins": (1, 1024), "window": (2, 1 << 16), "hop": (1, 1 << 16)}


@dataclass(frozen=True)
class FeatureConfig:
    """How samples become features; lengths are in samples."""

    kind: Kind = "log_mel"
    rate: int = 16_000  # Hz
    bins: int = 80  # mel filters
    window: int = 400  # of the Fourier transform
    hop: int = 160  # from one frame to the next
    mel_scale: MelScale = "slaney"
    max_frequency: float = 0.0  # of the highest filter in Hz; 0 = half of the rate
    coefficients: int = 13  # of "mfcc"
    dynamic_range: float = 0.0  # decibels below the loudest bin; what is quieter is raised to it; 0 = no limit
    normalisation: Normalisation = "none"  # to mean 0 and variance 1: each "bin" by itself, or all of a "recording"

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"{name} = {value}: expected {low:,} to {high:,}")
        if not 1 <= self.coefficients <= self.bins and self.kind == "mfcc":
            raise UserError(f"coefficients = {self.coefficients}: expected 1 to {self.bins}, the number of mel filters")
        if not 0 <= self.dynamic_range <= MAX_RANGE:
            raise UserError(f"dynamic_range = {self.dynamic_range}: expected 0 to {MAX_RANGE:g} decibels")
        if not 0 <= self.max_frequency <= self.rate / 2:
            raise UserError(f"max_frequency = {self.max_frequency}: expected at most {self.rate / 2:g}, half the rate")
        if self.kind in ("log_mel", "mfcc") and not self.filters.any(0).all():
            raise UserError(
                f"bins = {self.bins}: too many mel filters for windows of {self.window} samples at {self.rate:,} Hz: "
                "some are empty"
            )

    @property
    def filters(self) -> Tensor:
        """The mel filters (window // 2 + 1, bins)."""
        return mel_filters(self.bins, self.window, self.rate, self.mel_scale, self.max_frequency)

    @property
    def width(self) -> int:
        """The numbers of one frame."""
        return {"waveform": 1, "mfcc": self.coefficients}.get(self.kind, self.bins)

    @property
    def step(self) -> int:
        """The samples from one frame to the next."""
        return 1 if self.kind == "waveform" else self.hop

    def frames(self, length: int) -> int:
        """The frames of a recording of this many samples."""
        return max(1, length // self.step)


def extract(samples: Tensor, config: FeatureConfig) -> Tensor:
    """The features (frames, width) of a recording."""
    if config.kind == "waveform":
        features = samples[:, None]
    elif config.kind == "mfcc":
        features = limit_range(log_mel(samples, config), config.dynamic_range) @ dct(config.bins, config.coefficients)
    elif config.kind == "whisper":
        features = whisper_scaling(log_mel(samples, config))
    else:
        features = limit_range(log_mel(samples, config), config.dynamic_range)
    return normalise(features, config.normalisation)


def log_mel(samples: Tensor, config: FeatureConfig) -> Tensor:
    """The natural logarithm of the energy in each mel filter."""
    energies = [power @ config.filters for power in power_spectra(samples, config.window, config.hop)]
    return torch.cat(energies).clamp_(min=FLOOR).log_()


def whisper_scaling(features: Tensor) -> Tensor:
    """Log-mel as powers of ten within a range below the loudest, near −1 to 1. Radford et al. 2022, section 2.2."""
    return (limit_range(features, WHISPER_RANGE) / math.log(10) + 4) / 4


def limit_range(features: Tensor, decibels: float) -> Tensor:
    """Log-mel not lower than this below its maximum: background noise counts less."""
    if not decibels:
        return features
    return features.clamp(min=float(features.max()) - decibels / 10 * math.log(10))


def normalise(features: Tensor, normalisation: Normalisation) -> Tensor:
    """Mean 0 and variance 1 over the frames, of each bin or of all together."""
    if normalisation == "none":
        return features
    dimensions = (0,) if normalisation == "bin" else (0, 1)
    centred = features - features.mean(dimensions, keepdim=True)
    return centred / (centred.square().mean(dimensions, keepdim=True) + VARIANCE_FLOOR).sqrt()


def power_spectra(samples: Tensor, window: int, hop: int) -> Iterator[Tensor]:
    """|FFT|² of the frames under a periodic Hann window, (frames, window // 2 + 1), some frames at once."""
    half = window // 2
    samples = F.pad(samples, (0, max(0, half + 1 - len(samples), hop - len(samples))))  # too short to be reflected
    reflected = F.pad(samples[None], (half, half), mode="reflect")[0]
    frames = reflected.unfold(0, window, hop)[: len(samples) // hop]
    taper = torch.hann_window(window)
    for start in range(0, len(frames), FRAMES_AT_ONCE):
        spectrum = torch.fft.rfft(frames[start : start + FRAMES_AT_ONCE] * taper)
        yield spectrum.real.square() + spectrum.imag.square()


# ── constant matrices ────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=16)
def mel_filters(bins: int, window: int, rate: int, scale: MelScale, max_frequency: float = 0.0) -> Tensor:
    """Triangular filters (window // 2 + 1, bins), evenly spaced in mel; on Slaney's scale each has the same area."""
    highest = torch.tensor(max_frequency or rate / 2, dtype=torch.float64)
    mels = torch.linspace(0, 1, bins + 2, dtype=torch.float64) * hertz_to_mel(highest, scale)
    borders = mel_to_hertz(mels, scale)
    frequencies = torch.linspace(0, rate / 2, window // 2 + 1, dtype=torch.float64)[:, None]
    low, centre, high = borders[:-2], borders[1:-1], borders[2:]
    rising = (frequencies - low) / (centre - low)
    falling = (high - frequencies) / (high - centre)
    filters = torch.minimum(rising, falling).clamp(min=0)
    if scale == "slaney":
        filters = filters * 2 / (high - low)
    return filters.float()


def hertz_to_mel(hertz: Tensor, scale: MelScale) -> Tensor:
    """Slaney 1998: linear up to 1 kHz, then logarithmic. HTK: logarithmic (O'Shaughnessy 1987)."""
    if scale == "htk":
        return 2595 * torch.log10(1 + hertz / 700)
    return torch.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * torch.log(hertz.clamp(min=1) / 1000) / math.log(6.4))


def mel_to_hertz(mels: Tensor, scale: MelScale) -> Tensor:
    if scale == "htk":
        return 700 * (10 ** (mels / 2595) - 1)
    return torch.where(mels < 15, mels * 200 / 3, 1000 * torch.exp((mels - 15) * math.log(6.4) / 27))


@lru_cache(maxsize=16)
def dct(bins: int, coefficients: int) -> Tensor:
    """The orthonormal type-II discrete cosine transform (bins, coefficients)."""
    positions = torch.arange(bins, dtype=torch.float64)[:, None] + 0.5
    orders = torch.arange(coefficients, dtype=torch.float64)
    matrix = torch.cos(math.pi / bins * positions * orders) * math.sqrt(2 / bins)
    matrix[:, 0] /= math.sqrt(2)
    return matrix.float()
