"""Prepared image datasets: decoded and resized once, then memory-mapped, so that memory does not grow with them.

Shapes: image (height, width, channels) of type uint8, as the processor resizes it, before its crop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from regard.data.cache import Facts, Report, cache_path, smallest_uint
from regard.data.files import Record
from regard.data.pairs import Sample, reason_to_skip
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.errors import UserError
from regard.image.augment import Augmentation
from regard.image.processor import ImageProcessor
from regard.image.read import Decoded
from regard.image.sources import exists, read_image
from regard.layers.inputs import ImageBatch
from regard.progress import shown

FORMAT = "images 2"  # part of every key: increase it when what is written changes

SHAPE = Layout("int32", 3)  # height, width, channels


class StoredImages(RaggedDataset):
    """Prepared images, and what else is known of each."""

    def image(self, index: int) -> np.ndarray:
        return self.columns["pixels"][index].reshape(self.columns["shape"][index])


Stored = TypeVar("Stored", bound=StoredImages)


class Source(NamedTuple):
    """What a dataset is prepared from. `key` is all that determines the records, besides the processor."""

    records: Iterable[Any]
    key: Sequence[str]
    hashes: dict[str, str]  # of the files, for the run folder


def prepare_stored(
    dataset: Callable[[Mapping[str, Column], Facts], Stored],
    source: Source,
    processor: ImageProcessor,
    columns: Mapping[str, Layout],
    write: Callable[[DatasetWriter, Any], None],
    cache: Path,
) -> Stored:
    """The dataset with these columns besides the images; `write` adds a record to it, or skips and counts it."""
    report = Report(unit="images")

    def write_all(writer: DatasetWriter) -> None:
        writer.hashes = source.hashes
        with shown("preparing: {} images") as show:
            for record in source.records:
                report.read += 1
                write(writer, record)
                show(report.read)
        if not report.kept:
            raise UserError(f"no image left to use: {report}")

    folder = cache_path(cache, [FORMAT, *source.key, processor.stored_content()])
    layouts = {"pixels": Layout("uint8"), "shape": SHAPE, **columns}
    return prepare(folder, layouts, write_all, dataset, report)


def write_image(writer: DatasetWriter, name: str, location: str, processor: ImageProcessor) -> Decoded | None:
    """Adds an image as the processor resizes it, and returns it as read; None if it is skipped."""
    if not exists(name):
        writer.report.skip("image not found", f"{location}: {name}")
        return None
    try:
        decoded = read_image(name)
        image = processor.resize(decoded.pixels)
    except UserError as error:
        writer.report.skip("unreadable image", str(error))
        return None
    writer.report.kept += 1
    writer["pixels"].extend([image.reshape(-1)])
    writer["shape"].extend_array(image.shape)
    return decoded


# ── labelled images ──────────────────────────────────────────────────────────────────────────────────────────────────


class TargetEncoder(Protocol):
    """Converts the labels of records to ids."""

    @property
    def size(self) -> int: ...

    def encode_many(self, texts: list[str], /) -> list[list[int]]: ...

    def content(self) -> str: ...


class ImageDataset(StoredImages):
    """Prepared images, their targets as ids, and the names of the images."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        super().__init__(columns, facts)
        self.source_lengths = np.ones(len(self), np.int32)  # in batches all images count the same
        self.target_lengths = columns["target_lengths"].values
        self.target_values = columns["target"].values  # the targets' ids, end to end

    def __len__(self) -> int:
        return self.report.kept

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


def prepare_images(source: Source, processor: ImageProcessor, targets: TargetEncoder, cache: Path) -> ImageDataset:
    """The dataset of records whose source is the name of an image; one that cannot be read is skipped and counted."""
    columns = {"original": SHAPE, "text": TEXT}
    columns |= {"target": Layout(smallest_uint(targets.size)), "target_lengths": SCALAR}

    def write(writer: DatasetWriter, record: Record) -> None:
        if reason := reason_to_skip(record, 0):
            writer.report.skip(reason, record.location)
            return
        decoded = write_image(writer, record.source, record.location, processor)
        if decoded is None:
            return
        (target,) = targets.encode_many([record.target])
        writer["original"].extend_array((*decoded.pixels.shape[:2], decoded.channels))
        writer["text"].extend_texts((record.source, record.target))
        writer["target"].extend([target])
        writer["target_lengths"].extend_array([len(target)])

    keyed = source._replace(key=[*source.key, targets.content()])
    return prepare_stored(ImageDataset, keyed, processor, columns, write, cache)


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def collate_images(dataset: StoredImages, images: Sequence[int], processor: ImageProcessor) -> ImageBatch:
    """These images as one batch."""
    return ImageBatch(processor.normalise([processor.centre(dataset.image(image)) for image in images]))


def augmented(
    images: Sequence[np.ndarray],
    samples: Sequence[int],
    epoch: int,
    processor: ImageProcessor,
    augmentation: Augmentation,
) -> ImageBatch:
    """The stored images of these samples as one batch, changed at random as in this epoch."""
    return ImageBatch(processor.normalise_tensor(augmentation(images, samples, epoch, processor.output_size)))
