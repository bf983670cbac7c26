"""Prepared image datasets: decoded and resized once, then memory-mapped, so that memory does not grow with them.

Shapes: image (height, width, channels) of type uint8, as the processor resizes it, before its crop.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from regard.data.cache import Facts, Report, cache_path, smallest_uint
from regard.data.files import Record
from regard.data.pairs import Sample, reason_to_skip
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.errors import UserError
from regard.image.processor import ImageProcessor
from regard.image.sources import exists, read_image
from regard.progress import shown

FORMAT = "images 1"  # part of every key: increase it when what is written changes

SHAPE = Layout("int32", 3)  # height, width, channels


class TargetEncoder(Protocol):
    """Converts the targets of records to token ids: labels, or captions."""

    @property
    def size(self) -> int: ...

    def encode_many(self, texts: list[str], /) -> list[list[int]]: ...

    def content(self) -> str: ...


class ImageDataset(RaggedDataset):
    """Prepared images, their targets as token ids, and the names of the images."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        super().__init__(columns, facts)
        self.source_lengths = np.ones(len(self), np.int32)  # in batches all images count the same
        self.target_lengths = columns["target_lengths"].values
        self.target_values = columns["target"].values  # the targets' tokens, end to end

    def __len__(self) -> int:
        return self.report.kept

    def image(self, index: int) -> np.ndarray:
        return self.columns["pixels"][index].reshape(self.columns["shape"][index])

    def original_shape(self, index: int) -> tuple[int, int, int]:
        """The height, width and channels of the image as it was read."""
        height, width, channels = self.columns["original"][index].tolist()
        return height, width, channels

    def target(self, index: int) -> np.ndarray:
        return self.columns["target"][index]

    def text(self, index: int) -> Sample:
        """The name of an image, and its target as text."""
        text = self.columns["text"]
        return Sample(text.text(2 * index), text.text(2 * index + 1))


def prepare_images(
    records: Iterable[Record],
    key: Sequence[str],
    processor: ImageProcessor,
    targets: TargetEncoder,
    cache: Path,
    hashes: dict[str, str],
) -> ImageDataset:
    """The dataset of records whose source is the name of an image; one that cannot be read is skipped and counted.

    `key` is all that determines the records besides the processor and the targets.
    """
    stored = json.dumps([processor.size, processor.resample, processor.channels])
    folder = cache_path(cache, [FORMAT, *key, stored, targets.content()])
    layouts = {"pixels": Layout("uint8"), "shape": SHAPE, "original": SHAPE, "text": TEXT}
    layouts |= {"target": Layout(smallest_uint(targets.size)), "target_lengths": SCALAR}
    report = Report(unit="images")

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes
        with shown("preparing: {} images") as show:
            for record in records:
                _write(writer, record, processor, targets)
                show(report.read)
        if not report.kept:
            raise UserError(f"no image left to use: {report}")

    return prepare(folder, layouts, write, ImageDataset, report)


def _write(writer: DatasetWriter, record: Record, processor: ImageProcessor, targets: TargetEncoder) -> None:
    report = writer.report
    report.read += 1
    if reason := reason_to_skip(record, 0):
        report.skip(reason, record.location)
        return
    if not exists(record.source):
        report.skip("image not found", f"{record.location}: {record.source}")
        return
    try:
        decoded = read_image(record.source)
        image = processor.resize(decoded.pixels)
    except UserError as error:
        report.skip("unreadable image", str(error))
        return
    target = targets.encode_many([record.target])[0]
    report.kept += 1
    writer["pixels"].extend([image.reshape(-1)])
    writer["shape"].extend_array(image.shape)
    writer["original"].extend_array((*decoded.pixels.shape[:2], decoded.channels))
    writer["text"].extend_texts((record.source, record.target))
    writer["target"].extend([target])
    writer["target_lengths"].extend_array([len(target)])
