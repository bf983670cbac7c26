"""Prepared recordings: decoded once, their features memory-mapped, so that memory does not grow with them.

Shapes: frames (length, width) of type float32, as the processor computes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.audio.augment import change_speed
from regard.audio.processor import AudioProcessor
from regard.audio.sources import exists, read_recording, recording_header
from regard.data.cache import Facts, Report, cache_path, smallest_uint
from regard.data.files import Record
from regard.data.pairs import Sample, reason_to_skip
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.data.splits.hashed import digests
from regard.errors import UserError
from regard.progress import shown

FORMAT = "recordings 1"  # part of every key: increase it when what is written changes

ORIGINAL = Layout("int32", 2)  # sampling rate and channels of the file


class TargetEncoder(Protocol):
    """Converts the targets of records to token ids: labels, or transcripts."""

    @property
    def size(self) -> int: ...

    def encode_many(self, texts: list[str], /) -> list[list[int]]: ...

    def content(self) -> str: ...


class AudioDataset(RaggedDataset):
    """Features of recordings at one or several speeds, their targets as token ids, and the names of the recordings."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        super().__init__(columns, facts)
        self.width: int = facts["width"]
        self.speeds: list[float] = facts["speeds"]
        self.source_lengths = columns["lengths"].values  # in frames, at the first speed
        self.target_lengths = columns["target_lengths"].values
        self.target_values = columns["target"].values  # the targets' tokens, end to end

    def __len__(self) -> int:
        return self.report.kept

    def frames(self, index: int, speed: int = 0) -> Tensor:
        """The features of a recording at one of the speeds."""
        row = self.columns["frames"][index * len(self.speeds) + speed]
        return torch.from_numpy(row.copy()).view(-1, self.width)  # a copy: the file must not change

    def seconds(self, index: int) -> float:
        return float(self.columns["seconds"][index][0])

    def original(self, index: int) -> tuple[int, int]:
        """The sampling rate and the channels of the file."""
        rate, channels = self.columns["original"][index].tolist()
        return rate, channels

    def target(self, index: int) -> np.ndarray:
        return self.columns["target"][index]

    def text(self, index: int) -> Sample:
        """The name of a recording, and its target as text."""
        text = self.columns["text"]
        return Sample(text.text(2 * index), text.text(2 * index + 1))


class Preparation(NamedTuple):
    """How recordings become rows of a dataset."""

    processor: AudioProcessor
    targets: TargetEncoder
    max_frames: int = 0  # longer recordings are skipped and counted; 0 = no limit
    speeds: Sequence[float] = (1.0,)
    reject: Callable[[int, Sequence[int]], str] | None = None  # why a target of so many frames cannot be used, or ""

    def content(self) -> list[str]:
        return [self.processor.content(), self.targets.content(), f"{self.max_frames} {list(self.speeds)}"]


def prepare_recordings(
    records: Iterable[Record], key: Sequence[str], preparation: Preparation, cache: Path, hashes: dict[str, str]
) -> AudioDataset:
    """The dataset of records whose source is the name of a recording; one that cannot be read is skipped and counted.

    `key` is all that determines the records, and which of them are rejected.
    """
    folder = cache_path(cache, [FORMAT, *key, *preparation.content()])
    layouts = {"frames": Layout("float32"), "lengths": SCALAR, "seconds": Layout("float32", 1), "original": ORIGINAL}
    layouts |= {"digest": Layout("uint64", 1)}  # equal for recordings with equal samples
    layouts |= {"text": TEXT, "target": Layout(smallest_uint(preparation.targets.size)), "target_lengths": SCALAR}
    report = Report(unit="recordings")

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes
        writer.facts = {"width": preparation.processor.width, "speeds": list(preparation.speeds)}
        with shown("preparing: {} recordings") as show:
            for record in records:
                _write(writer, record, preparation)
                show(report.read)
        if not report.kept:
            raise UserError(f"no recording left to use: {report}")

    return prepare(folder, layouts, write, AudioDataset, report)


def _write(writer: DatasetWriter, record: Record, preparation: Preparation) -> None:
    report = writer.report
    report.read += 1
    if reason := reason_to_skip(record, 0):
        report.skip(reason, record.location)
        return
    if not exists(record.source):
        report.skip("recording not found", f"{record.location}: {record.source}")
        return
    processor = preparation.processor
    try:
        header = recording_header(record.source)
        samples = read_recording(record.source, processor.rate)
    except UserError as error:
        report.skip("unreadable recording", str(error))
        return
    versions = [change_speed(samples, speed) for speed in preparation.speeds]
    max_length = max(processor.features.frames(len(version)) for version in versions)
    if preparation.max_frames and max_length > preparation.max_frames:
        seconds = preparation.max_frames * processor.frame_seconds
        report.skip(f"longer than {preparation.max_frames} frames ({seconds:g} seconds)", record.location)
        return
    features = [processor.extract(version) for version in versions]
    target = preparation.targets.encode_many([record.target])[0]
    if preparation.reject and (reason := preparation.reject(min(map(len, features)), target)):
        report.skip(reason, record.location)
        return
    report.kept += 1
    writer["frames"].extend([frames.flatten().numpy() for frames in features])
    writer["lengths"].extend_array([len(features[0])])
    writer["seconds"].extend_array([len(samples) / processor.rate])
    writer["digest"].extend_array(digests([samples.tobytes()]))
    writer["original"].extend_array((header.rate, header.channels))
    writer["text"].extend_texts((record.source, record.target))
    writer["target"].extend([target])
    writer["target_lengths"].extend_array([len(target)])
