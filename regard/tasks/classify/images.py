"""Labelled images: the prepared dataset, augmented batches of it, and images as inputs of predictions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from regard.attention.recording import Recorder
from regard.attention.trace import Trace
from regard.config.recipe import Recipe
from regard.data.cache import options_key
from regard.data.splits.hashed import digests
from regard.data.targets import Targets, validated
from regard.errors import UserError
from regard.image.augment import Augmentation
from regard.image.dataset import ImageDataset, Source, augmented, collate_images, prepare_images
from regard.image.processor import ImageProcessor
from regard.image.sources import exists, read_image
from regard.interop.folder import Loaded
from regard.interop.processors import FeatureProcessor
from regard.layers.inputs import ImageBatch
from regard.models.registry import outline
from regard.tasks.classify import image_files
from regard.tasks.classify.files import read_all
from regard.tasks.classify.head import attach_classifier
from regard.tasks.classify.modality import AUDIO_OPTIONS, Modality
from regard.tasks.images import (
    COLUMNS,
    ImageRow,
    image_of_row,
    image_rows,
    images_of_arguments,
    is_single_image,
    read_pixels,
    trace_of_image,
)
from regard.tasks.inspection import Findings, warn_overlaps
from regard.tasks.predictor import RunInput

CHANNELS = {1: "grey", 2: "grey + alpha", 3: "colour", 4: "colour + alpha"}


class Images(Modality):
    """Images in files, arrays, or given as Pillow images or numpy arrays."""

    unit = "images"
    columns = COLUMNS
    other_options = (
        *("data.text", "data.text_pair", "data.max_length", "data.truncate", "data.segment_length", "data.stride"),
        *("train.batch_tokens", "train.lm_loss_weight", *AUDIO_OPTIONS),
    )
    locate = staticmethod(image_files.locate)
    files = staticmethod(image_files.files)
    records = staticmethod(image_files.records)

    @classmethod
    def create_processor(cls, recipe: Recipe) -> FeatureProcessor:
        config = outline(recipe.model)
        height, width = config.image_shape
        return FeatureProcessor(ImageProcessor.default(height, width, config.channels))

    @classmethod
    def attach_head(cls, loaded: Loaded, recipe: Recipe) -> Loaded:
        return attach_classifier(loaded, recipe, cls)

    @property
    def images(self) -> ImageProcessor:
        """The image processor of the model."""
        return self.processor.source

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, split: str, targets: Targets, cache: Path, max_length: int) -> ImageDataset:
        assert self.recipe is not None
        base_dir = Path(self.recipe.origin)
        hashes = image_files.hashes(self.data, split, base_dir)
        location = str(self.locate(self.data, split, base_dir).absolute())  # the names of images contain it
        key = ["labelled images", location, options_key(self.data, split), json.dumps(hashes)]
        records = validated(read_all(self.data, split, base_dir, type(self)), targets)
        return prepare_images(Source(records, key, hashes), self.images, targets, cache)

    @property
    def augmentation(self) -> Augmentation:
        assert self.recipe is not None
        return Augmentation(self.recipe.augment, self.recipe.seed)  # type: ignore[arg-type]

    def collate(self, dataset: ImageDataset, indices: Sequence[int], epoch: int | None = None) -> ImageBatch:
        if epoch is None:
            return collate_images(dataset, indices, self.images)
        stored = [dataset.image(index) for index in indices]
        return augmented(stored, indices, epoch, self.images, self.augmentation)

    def repeat(self, indices: Sequence[int]) -> Sequence[int]:
        return self.augmentation.repeat(indices)

    def mix_targets(self, targets: Tensor, indices: Sequence[int], epoch: int) -> Tensor:
        """Labels become probabilities where images are mixed."""
        augmentation = self.augmentation
        if not augmentation.mixes:
            return targets
        if self.network.problem_type == "single_label":
            targets = F.one_hot(targets, len(self.network.labels)).float()
        return augmentation.mix_targets(targets, indices, epoch, self.images.output_size)

    def inspect(self, splits: Mapping[str, ImageDataset], findings: Findings) -> None:
        """Sizes and channels of the files, unreadable ones, images in two splits, and imbalanced labels."""
        table: dict[str, dict[str, Any]] = {}
        hashes = {}
        for name, split in splits.items():
            shapes = np.array([split.original_shape(index) for index in range(len(split))])
            low, middle, high = (np.percentile(shapes[:, :2], share, 0, method="nearest") for share in (0, 50, 100))
            sizes = {"smallest": low, "median": middle, "largest": high}
            kinds = {
                CHANNELS.get(channels, str(channels)): int((shapes[:, 2] == channels).sum()) for channels in CHANNELS
            }
            table[name] = {key: f"{height} × {width}" for key, (height, width) in sizes.items()}
            table[name] |= {kind: count for kind, count in kinds.items() if count}
            hashes[name] = digests(split.columns["pixels"][index].tobytes() for index in range(len(split)))
            for reason in ("unreadable image", "image not found"):
                if skip := split.report.skipped.get(reason):
                    findings.warnings.append(f"{name}: {skip.count} × {reason}; first: {skip.first}")
            if len({*shapes[:, 2].tolist()}) > 1:
                findings.warnings.append(
                    f"{name}: files with different channels; all are converted to {CHANNELS[self.images.channels]}"
                )
        findings.facts["image_sizes"] = table
        warn_overlaps("same_image", hashes, findings, "images are in train too, so its scores are too high")
        self.warn_imbalance(splits["train"], findings)

    # ── prediction ───────────────────────────────────────────────────────────────────────────────────────────────────

    def value(self, source: str) -> str:
        return source

    def is_readable(self, source: str) -> bool:
        try:
            return bool(source) and exists(source) and self.images.resize(read_image(source).pixels).size > 0
        except UserError:
            return False

    def is_single(self, inputs: Any) -> bool:
        return is_single_image(inputs)

    def encode(self, values: Sequence[Any], truncate: bool = False) -> list[ImageRow]:
        return image_rows(values)

    def lengths(self, rows: Sequence[ImageRow]) -> list[int]:
        return [self.network.max_positions] * len(rows)

    def batch(self, rows: Sequence[ImageRow]) -> ImageBatch:
        return self.images([read_pixels(row.value) for row in rows])

    def trace(self, recorder: Recorder, row: ImageRow, answer: str) -> Trace:
        return trace_of_image(recorder, self.network.body, self.images, row, answer)

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput]:
        return images_of_arguments(arguments)

    def parse_row(self, text: str, second: str | None, location: str) -> RunInput:
        return image_of_row(text, location)
