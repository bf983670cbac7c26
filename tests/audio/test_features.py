"""Features equal float64 computations of their formulas, and those of the reference implementations."""

import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import need, need_weights
from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from regard.audio.features import FLOOR, FRAMES_AT_ONCE, FeatureConfig, extract, log_mel, mel_filters
from regard.audio.processor import AudioProcessor
from regard.audio.read import read_audio
from regard.errors import UserError


def speech(length: int, rate: int = 16_000) -> np.ndarray:
    """Harmonics of a gliding pitch under a changing loudness, and noise 40 dB below."""
    rng = np.random.default_rng(3)
    time = np.arange(length) / rate
    pitch = 2 * np.pi * (120 * time + 20 * np.sin(3 * time))
    voice = sum(np.sin(harmonic * pitch) / harmonic for harmonic in range(1, 20))
    return (0.2 * voice * (1 + np.sin(7 * time)) + 0.002 * rng.standard_normal(length)).astype(np.float32)


# ── a float64 reference ──────────────────────────────────────────────────────────────────────────────────────────────


def reference_log_mel(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    half = config.window // 2
    reflected = np.pad(samples.astype(np.float64), half, mode="reflect")
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * n / config.window) for n in range(config.window)]
    bank = mel_filter_bank(
        num_frequency_bins=half + 1, num_mel_filters=config.bins, min_frequency=0.0,
        max_frequency=config.max_frequency or config.rate / 2, sampling_rate=config.rate,
        norm="slaney" if config.mel_scale == "slaney" else None, mel_scale=config.mel_scale,
    )  # fmt: skip
    rows = []
    for frame in range(len(samples) // config.hop):
        frame_samples = reflected[frame * config.hop : frame * config.hop + config.window] * hann
        rows.append(np.abs(np.fft.rfft(frame_samples)) ** 2 @ bank)
    return np.log(np.maximum(rows, FLOOR))


def reference_dct(values: np.ndarray, coefficients: int) -> np.ndarray:
    count = values.shape[1]
    rows = []
    for order in range(coefficients):
        scale = math.sqrt((1 if order == 0 else 2) / count)
        rows.append(
            scale * sum(values[:, n] * math.cos(math.pi * order * (2 * n + 1) / (2 * count)) for n in range(count))
        )
    return np.stack(rows, 1)


CONFIGS = [
    FeatureConfig(),
    FeatureConfig(rate=8_000, bins=40, window=200, hop=80),
    FeatureConfig(bins=23, window=512, hop=171, mel_scale="htk"),
    FeatureConfig(bins=31, window=401, hop=160, max_frequency=7000.0),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_log_mel_equals_the_formula(config: FeatureConfig) -> None:
    samples = speech(7919, config.rate)
    found = log_mel(torch.from_numpy(samples), config).numpy()
    expected = reference_log_mel(samples, config)
    assert found.shape == expected.shape == (config.frames(7919), config.bins)
    assert np.abs(found - expected).max() <= 1e-4


@pytest.mark.parametrize("config", CONFIGS)
def test_mfcc_equals_the_formula(config: FeatureConfig) -> None:
    samples = speech(7919, config.rate)
    mfcc = FeatureConfig(**{**vars(config), "kind": "mfcc", "coefficients": 13})
    found = extract(torch.from_numpy(samples), mfcc).numpy()
    expected = reference_dct(reference_log_mel(samples, config), 13)
    assert found.shape == (config.frames(7919), mfcc.width)
    assert np.abs(found - expected).max() <= 1e-4


def test_normalised_features_have_mean_0_and_variance_1() -> None:
    samples = torch.from_numpy(speech(16_000))
    plain = extract(samples, FeatureConfig())
    normal = extract(samples, FeatureConfig(normalisation="bin"))
    torch.testing.assert_close(normal.mean(0), torch.zeros(80), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.var(0, correction=0), torch.ones(80), atol=1e-4, rtol=0)
    restored = normal * plain.std(0, correction=0) + plain.mean(0)
    torch.testing.assert_close(restored, plain, atol=1e-4, rtol=1e-4)


def test_a_normalised_recording_has_mean_0_and_variance_1() -> None:
    samples = torch.from_numpy(speech(16_000))
    plain = extract(samples, FeatureConfig())
    normal = extract(samples, FeatureConfig(normalisation="recording"))
    assert float(normal.mean()) == pytest.approx(0, abs=1e-5)
    assert float(normal.var(correction=0)) == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(normal * plain.std(correction=0) + plain.mean(), plain, atol=1e-4, rtol=1e-4)


def test_the_dynamic_range_is_limited() -> None:
    samples = torch.from_numpy(speech(16_000))
    plain = extract(samples, FeatureConfig())
    limited = extract(samples, FeatureConfig(dynamic_range=30.0))
    low = float(plain.max()) - math.log(1000)
    assert float(limited.min()) == pytest.approx(low, abs=1e-5) and float(plain.min()) < low
    assert torch.equal(limited[plain > low], plain[plain > low])


def test_silence_has_finite_features() -> None:
    for kind in ("log_mel", "mfcc", "whisper", "waveform"):
        for normalisation in ("none", "bin", "recording"):
            config = FeatureConfig(kind, normalisation=normalisation)
            for length in (1, 7, 160, 201, 4000):
                features = extract(torch.zeros(length), config)
                assert features.shape == (config.frames(length), config.width)
                assert features.isfinite().all()


def test_a_long_recording_is_transformed_in_parts_without_seams() -> None:
    config = FeatureConfig(rate=8_000, bins=20, window=64, hop=32)
    samples = torch.from_numpy(speech(32 * (FRAMES_AT_ONCE + 77), 8_000))
    features = log_mel(samples, config)
    seam = FRAMES_AT_ONCE * 32
    around = log_mel(samples[seam - 3200 : seam + 1600], config)
    torch.testing.assert_close(features[FRAMES_AT_ONCE - 90 : FRAMES_AT_ONCE + 40], around[10:140])


def test_too_many_filters_are_an_error() -> None:
    with pytest.raises(UserError, match="mel filters"):
        FeatureConfig(bins=200, window=200, rate=8_000)
    wrongs: list[dict[str, Any]] = [dict(bins=0), dict(hop=0), dict(rate=7), dict(kind="mfcc", coefficients=81)]
    for wrong in [*wrongs, dict(max_frequency=9e3), dict(dynamic_range=-1.0)]:
        with pytest.raises(UserError, match="expected"):
            FeatureConfig(**wrong)


# ── reference implementations ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("scale", "norm"), [("slaney", "slaney"), ("htk", None)])
@pytest.mark.parametrize(("bins", "window", "rate"), [(80, 400, 16_000), (128, 1024, 16_000), (23, 512, 44_100)])
def test_mel_filters_equal_transformers(scale: str, norm: str | None, bins: int, window: int, rate: int) -> None:
    expected = mel_filter_bank(window // 2 + 1, bins, 0.0, rate / 2, rate, norm, scale)
    np.testing.assert_allclose(mel_filters(bins, window, rate, scale).numpy(), expected, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"feature_size": 128}, {"chunk_length": 7, "hop_length": 171, "n_fft": 512}])
def test_whisper_features_equal_transformers(options: dict[str, Any]) -> None:
    theirs = WhisperFeatureExtractor(**options)
    processor = AudioProcessor.from_config(theirs.to_dict())
    for length in (1, 16_000, 100_003):
        samples = speech(length)
        expected = theirs(samples, sampling_rate=16_000, return_tensors="pt").input_features.transpose(1, 2)
        found = processor([samples])
        assert found.frames.shape == expected.shape and found.lengths.tolist() == [expected.size(1)]
        assert float((found.frames - expected).abs().max()) <= 1e-4


def test_waveforms_equal_transformers() -> None:
    theirs = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    processor = AudioProcessor.from_config(theirs.to_dict())
    recordings = [speech(length) for length in (5003, 701)]
    expected = theirs(recordings, sampling_rate=16_000, return_tensors="pt", padding=True)
    found = processor(recordings)
    assert found.lengths.tolist() == expected.attention_mask.sum(1).tolist()
    assert float((found.frames[..., 0] - expected.input_values).abs().max()) <= 1e-4


def doubled(samples: np.ndarray) -> np.ndarray:
    """At twice the rate, by the filter of scipy.signal.resample_poly, with which the expected values were computed."""
    half = 20
    taps = np.kaiser(2 * half + 1, 5.0) * np.sinc(np.arange(-half, half + 1) / 2)
    spread = np.zeros(2 * len(samples))
    spread[::2] = samples
    return np.convolve(spread, 2 * taps / taps.sum())[half : half + len(spread)].astype(np.float32)


def test_whisper_features_equal_the_expected_ones() -> None:
    weights = need_weights("whisper-tiny-en")
    archive = Path(os.environ.get("REGARD_DATA", "nowhere")) / "asterisk-prompts-en" / "flac8k.zip"
    need(archive.is_file(), "set REGARD_DATA to a folder with asterisk-prompts-en")
    processor = AudioProcessor.load(weights)
    expected = json.loads((weights / "expected.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(archive) as file:
        for entry in expected:
            samples = doubled(read_audio(io.BytesIO(file.read(entry["file"])), 8_000, entry["file"]))
            frames = processor([samples]).frames
            assert float(frames.mean()) == pytest.approx(entry["features_mean"], abs=1e-4)
            assert float(frames.std()) == pytest.approx(entry["features_std"], abs=1e-4)
