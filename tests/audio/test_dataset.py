"""Prepared recordings: features as the processor computes them, at all speeds, and what was skipped."""

from pathlib import Path

import numpy as np
import soundfile
import torch

from regard.audio.augment import AudioAugmentation, change_speed
from regard.audio.dataset import AudioDataset, Preparation, prepare_recordings
from regard.audio.processor import AudioProcessor
from regard.audio.read import read_audio
from regard.config.options import AudioAugmentOptions, RecordingOptions
from regard.data.files import Record
from regard.data.targets import SingleLabelTargets

RATE = 8_000
TARGETS = SingleLabelTargets(["no", "yes"])
PROCESSOR = AudioProcessor.default(RecordingOptions(sampling_rate=RATE), 13)


def prepared(folder: Path, names: list[str], **options) -> AudioDataset:
    records = [Record(str(folder / name), "yes", "", name, name) for name in names]
    return prepare_recordings(records, ["test"], Preparation(PROCESSOR, TARGETS, **options), folder / "cache", {})


def write(folder: Path, lengths: dict[str, int]) -> None:
    for name, length in lengths.items():
        noise = np.random.default_rng(length).uniform(-0.5, 0.5, (length, 2))
        soundfile.write(folder / name, noise, 2 * RATE)


def test_features_are_stored_at_all_speeds(tmp_path: Path) -> None:
    lengths = {"a.wav": 4_001, "b.flac": 9_999, "c.ogg": 12_000}
    write(tmp_path, lengths)
    speeds = (0.9, 1.0, 1.1)
    dataset = prepared(tmp_path, [*lengths], speeds=speeds)
    assert len(dataset) == 3 and dataset.width == 13
    for index, name in enumerate(lengths):
        samples = read_audio(tmp_path / name, RATE)
        for version, speed in enumerate(speeds):
            assert torch.equal(dataset.frames(index, version), PROCESSOR.extract(change_speed(samples, speed)))
        assert dataset.source_lengths[index] == len(dataset.frames(index))
        assert dataset.seconds(index) == np.float32(len(samples) / RATE)
        assert dataset.original(index) == (2 * RATE, 2)
        assert dataset.text(index) == (str(tmp_path / name), "yes") and dataset.target(index).tolist() == [1]
    augmentation = AudioAugmentation(AudioAugmentOptions(speeds=speeds), 1)
    chosen = [augmentation.frames(dataset, 1, epoch) for epoch in range(20)]
    assert {len(frames) for frames in chosen} == {len(dataset.frames(1, version)) for version in range(3)}


def test_changing_features_does_not_change_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"a.wav": 4_001})
    dataset = prepared(tmp_path, ["a.wav"])
    dataset.frames(0).zero_()
    assert dataset.frames(0).abs().sum() > 0


def test_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    write(tmp_path, {"a.wav": 4_000, "long.wav": 40_000})
    (tmp_path / "b.wav").write_bytes(b"damaged")
    dataset = prepared(tmp_path, ["a.wav", "b.wav", "c.wav", "long.wav"], max_frames=100)
    assert len(dataset) == 1 and dataset.report.read == 4
    assert len(dataset.report.skipped) == 3
    assert "b.wav" in dataset.report.skipped["unreadable recording"].first
    assert "c.wav" in dataset.report.skipped["recording not found"].first
    assert "long.wav" in dataset.report.skipped["longer than 100 frames (1 seconds)"].first


def test_a_prepared_dataset_is_opened_again(tmp_path: Path) -> None:
    write(tmp_path, {"a.wav": 4_000})
    first = prepared(tmp_path, ["a.wav"])
    (tmp_path / "a.wav").unlink()
    again = prepared(tmp_path, ["a.wav"])
    assert torch.equal(again.frames(0), first.frames(0))
    assert isinstance(again.columns["frames"].values, np.memmap)
