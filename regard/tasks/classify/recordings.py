"""Labelled recordings (keyword spotting): the prepared dataset, augmented batches, and recordings as inputs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.recording import Recorder
from regard.attention.trace import Axes, Trace
from regard.audio import sources
from regard.audio.augment import AudioAugmentation
from regard.audio.dataset import AudioDataset, Preparation, prepare_recordings
from regard.audio.processor import AudioProcessor
from regard.config.recipe import Recipe
from regard.data.cache import options_key
from regard.data.targets import Targets, validated
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.interop.processors import FeatureProcessor
from regard.layers.inputs import AudioBatch
from regard.models.registry import outline
from regard.tasks.classify import recording_files
from regard.tasks.classify.files import read_all
from regard.tasks.classify.head import attach_classifier
from regard.tasks.classify.modality import IMAGE_AUGMENTATION, Modality
from regard.tasks.classify.options import ClassifyData
from regard.tasks.inspection import Findings, warn_overlaps
from regard.tasks.predictor import RunInput
from regard.tasks.recordings import (
    AudioRow,
    encode_recordings,
    is_single_recording,
    read_samples,
    recording_of_row,
    recordings_of_arguments,
    row_features,
    time_axis,
)

UNPREPARED = ("max_length",)  # options that `Preparation` has


class Recordings(Modality):
    """Recordings in files, or given as arrays of samples."""

    unit = "recordings"
    columns = ("audio",)
    other_options = (
        *("data.text", "data.text_pair", "data.image", "data.truncate", "data.segment_length", "data.stride"),
        *("train.lm_loss_weight", *IMAGE_AUGMENTATION),
    )
    locate = staticmethod(recording_files.locate)
    files = staticmethod(recording_files.files)
    records = staticmethod(recording_files.records)

    @classmethod
    def create_processor(cls, recipe: Recipe) -> FeatureProcessor:
        return FeatureProcessor(AudioProcessor.default(ClassifyData.of(recipe), outline(recipe.model).bins))

    @classmethod
    def attach_head(cls, loaded: Loaded, recipe: Recipe) -> Loaded:
        return attach_classifier(loaded, recipe, cls)

    @property
    def audio(self) -> AudioProcessor:
        """The audio processor of the model."""
        return self.processor.source

    def check_options(self) -> None:
        super().check_options()
        self.audio.check_options(self.data)

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, split: str, targets: Targets, cache: Path, max_length: int) -> AudioDataset:
        assert self.recipe is not None
        base_dir = Path(self.recipe.origin)
        hashes = sources.hashes(self.data, split, base_dir)
        location = str(self.locate(self.data, split, base_dir).absolute())  # the names of recordings contain it
        key = ["labelled recordings", location, options_key(self.data, split, UNPREPARED), json.dumps(hashes)]
        speeds = self.augmentation.speeds if split == "train" else (1.0,)
        preparation = Preparation(self.audio, targets, max_length, speeds)
        records = validated(read_all(self.data, split, base_dir, type(self)), targets)
        return prepare_recordings(records, key, preparation, cache, hashes)

    @property
    def augmentation(self) -> AudioAugmentation:
        assert self.recipe is not None
        return AudioAugmentation(self.recipe.augment, self.recipe.seed)  # type: ignore[arg-type]

    def collate(self, dataset: AudioDataset, indices: Sequence[int], epoch: int | None = None) -> AudioBatch:
        if epoch is None:
            return self.audio.collate([dataset.frames(index) for index in indices])
        augmentation = self.augmentation
        return self.audio.collate([augmentation.frames(dataset, index, epoch) for index in indices])

    def inspect(self, splits: Mapping[str, AudioDataset], findings: Findings) -> None:
        """Lengths, sampling rates and channels of the files, unreadable ones, and recordings in two splits."""
        table: dict[str, dict[str, Any]] = {}
        hashes = {}
        for name, split in splits.items():
            seconds = np.array([split.seconds(index) for index in range(len(split))])
            quantiles = dict(zip(("shortest", "median", "longest"), np.percentile(seconds, (0, 50, 100)), strict=True))
            rates, channels = (
                sorted({*values}) for values in zip(*map(split.original, range(len(split))), strict=True)
            )
            table[name] = {key: f"{value:.2f} s" for key, value in quantiles.items()}
            table[name] |= {"total": f"{seconds.sum() / 3600:.2f} h", "Hz": rates, "channels": channels}
            hashes[name] = split.columns["digest"].values
            for reason in ("unreadable recording", "recording not found"):
                if skip := split.report.skipped.get(reason):
                    findings.warnings.append(f"{name}: {skip.count} × {reason}; first: {skip.first}")
            if rates[-1] < self.audio.rate:
                findings.warnings.append(
                    f"{name}: recordings of {rates[-1]:,} Hz are resampled to {self.audio.rate:,} Hz: for a new model "
                    f"set data.sampling_rate = {rates[-1]}"
                )
        findings.facts["recordings"] = table
        warn_overlaps("same_recording", hashes, findings, "recordings are in train too, so its scores are too high")
        self.warn_imbalance(splits["train"], findings)

    # ── prediction ───────────────────────────────────────────────────────────────────────────────────────────────────

    def value(self, source: str) -> str:
        return source

    def is_readable(self, source: str) -> bool:
        try:
            return len(read_samples(source, self.audio.rate)) > 0
        except UserError:
            return False

    def is_single(self, inputs: Any) -> bool:
        return is_single_recording(inputs)

    def encode(self, values: Sequence[Any], truncate: bool = False) -> list[AudioRow]:
        return encode_recordings(values, self.audio, self.network.max_positions, truncate)

    def lengths(self, rows: Sequence[AudioRow]) -> list[int]:
        return [row.length for row in rows]

    def batch(self, rows: Sequence[AudioRow]) -> AudioBatch:
        return self.audio.collate([row_features(row, self.audio) for row in rows])

    def trace(self, recorder: Recorder, row: AudioRow, answer: str) -> Trace:
        encoder = self.network.body
        states = -(-row.length // encoder.stride)
        axis = time_axis(states, encoder.stride * self.audio.frame_seconds)
        return Trace(recorder, Axes(encoder.sites(axis), axis), answer)

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput]:
        return recordings_of_arguments(arguments)

    def parse_row(self, text: str, second: str | None, location: str) -> RunInput:
        return recording_of_row(text, location)
