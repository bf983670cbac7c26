"""Augmentation of recordings: pure functions of (seed, sample, epoch), within their limits."""

import numpy as np
import pytest
import torch

from regard.audio.augment import AudioAugmentation, change_speed
from regard.config.options import AudioAugmentOptions
from regard.errors import UserError

LENGTH, BINS = 101, 23

OPTIONS = AudioAugmentOptions(
    speeds=(0.9, 1.0, 1.1), frequency_masks=2, frequency_mask_width=5, time_masks=3, time_mask_width=11
)


def frames() -> torch.Tensor:
    return torch.randn(LENGTH, BINS, generator=torch.Generator().manual_seed(0))


def masked(options: AudioAugmentOptions, sample: int = 0, epoch: int = 0, seed: int = 1) -> torch.Tensor:
    return AudioAugmentation(options, seed).mask(frames(), sample, epoch)


def changed(options: AudioAugmentOptions, sample: int, epoch: int = 0) -> torch.Tensor:
    return masked(options, sample, epoch) != frames()


def test_equal_seed_sample_and_epoch_give_equal_changes() -> None:
    first = masked(OPTIONS, 3, 5)
    assert torch.equal(masked(OPTIONS, 3, 5), first)
    for other in (masked(OPTIONS, 4, 5), masked(OPTIONS, 3, 6), masked(OPTIONS, 3, 5, seed=2)):
        assert not torch.equal(other, first)
    augmentation = AudioAugmentation(OPTIONS, 1)
    speeds = [augmentation.speed(sample, epoch) for sample in range(30) for epoch in range(3)]
    assert speeds == [AudioAugmentation(OPTIONS, 1).speed(sample, epoch) for sample in range(30) for epoch in range(3)]
    assert set(speeds) == {0, 1, 2}


def test_masks_are_spans_within_their_limits() -> None:
    means = frames().mean(0)
    widths = set()
    for sample in range(200):
        bands = changed(AudioAugmentOptions(frequency_masks=1, frequency_mask_width=5), sample)
        assert (bands.all(0) == bands.any(0)).all()  # all frames of a masked bin
        spans = changed(AudioAugmentOptions(time_masks=1, time_mask_width=11), sample)
        assert (spans.all(1) == spans.any(1)).all()
        for masks, limit in ((bands.any(0), 5), (spans.any(1), 11)):
            positions = masks.nonzero().flatten()
            assert len(positions) <= limit
            assert not len(positions) or int(positions[-1] - positions[0]) == len(positions) - 1
        widths.add(int(bands.any(0).sum()))
        values = masked(AudioAugmentOptions(time_masks=1, time_mask_width=11), sample)
        torch.testing.assert_close(values[spans], means.expand(LENGTH, -1)[spans])
    assert widths == {0, 1, 2, 3, 4, 5}


def test_the_share_of_masked_frames_is_limited() -> None:
    options = AudioAugmentOptions(time_masks=1, time_mask_width=10_000, time_mask_share=0.1)
    counts = [int(changed(options, sample).any(1).sum()) for sample in range(200)]
    assert max(counts) == LENGTH // 10


def test_a_filter_adds_a_smooth_response_to_all_frames() -> None:
    augmentation = AudioAugmentation(AudioAugmentOptions(filter_gain=0.5), 1)
    responses = torch.stack([augmentation.filter(frames(), sample, 0) - frames() for sample in range(50)])
    torch.testing.assert_close(responses, responses[:, :1].expand(-1, LENGTH, -1), atol=1e-5, rtol=0)
    assert 0.4 < float(responses.abs().max()) <= 0.5 + 1e-5
    steps = responses[:, 0].diff(dim=1)
    assert float(steps.abs().max()) <= 2 * 0.5 * 4 / (BINS - 1) + 1e-5  # between two points
    assert torch.equal(augmentation.filter(frames(), 3, 7), augmentation.filter(frames(), 3, 7))
    assert not torch.equal(augmentation.filter(frames(), 3, 7), augmentation.filter(frames(), 3, 8))


def test_without_options_nothing_changes() -> None:
    assert torch.equal(masked(AudioAugmentOptions()), frames())
    assert AudioAugmentation(AudioAugmentOptions(), 1).speeds == (1.0,)
    samples = np.ones(7, np.float32)
    assert change_speed(samples, 1.0) is samples


@pytest.mark.parametrize("speed", [0.8, 0.9, 1.1, 1.25])
def test_speed_changes_length_and_pitch(speed: float) -> None:
    rate, hertz = 8_000, 400
    samples = np.sin(2 * np.pi * hertz * np.arange(rate) / rate).astype(np.float32)
    faster = change_speed(samples, speed)
    assert len(faster) == pytest.approx(rate / speed, abs=1)
    spectrum = np.abs(np.fft.rfft(faster))
    assert spectrum.argmax() * rate / len(faster) == pytest.approx(hertz * speed, abs=1)


@pytest.mark.parametrize(
    "options",
    [
        {"speeds": (0.1,)},
        {"speeds": (1.0, 1.0)},
        {"time_masks": -1},
        {"time_mask_share": 1.5},
        {"frequency_masks": 1 << 20},
    ],
)
def test_wrong_options_are_errors(options: dict) -> None:
    with pytest.raises(UserError, match=r"augment\."):
        AudioAugmentOptions(**options)
