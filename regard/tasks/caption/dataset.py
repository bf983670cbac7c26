"""Images with captions: read from tables or generated, grouped by image, prepared once, and batched.

A sample is an image with one of its captions; all captions of an image are its references.

Shapes: image (height, width, channels) of type uint8, as the processor resizes it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.config.recipe import Recipe
from regard.data.cache import Facts, Report, cache_path, content_hash, hash_together, options_key, smallest_uint
from regard.data.files import find, hash_files, rows, suffix
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset, prepare
from regard.data.splits.hashed import file_of, held
from regard.data.synthetic.shapes import scene
from regard.errors import UserError, nearest
from regard.image.augment import Augmentation
from regard.image.processor import ImageProcessor
from regard.image.sources import exists, read_image, synthetic_name
from regard.layers.inputs import ImageBatch
from regard.progress import shown
from regard.tasks.caption.options import CaptionData
from regard.tasks.seq2seq import Seq2SeqBatch, collate_targets
from regard.text.tokenizer import Tokenizer

FORMAT = "captions 1"  # part of every key: increase it when what is written changes

SHAPE = Layout("int32", 3)  # height, width, channels

SYNTHETIC = ("shapes",)
SYNTHETIC_SEED = 1  # the same images for every seed of a run, so that runs can be compared


class CaptionRecord(NamedTuple):
    """An image and its captions as read; equal `group`s are in the same split."""

    image: str
    captions: tuple[str, ...]
    group: str
    location: str


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_table(path: Path, data: CaptionData, base_dir: Path | None = None) -> list[CaptionRecord]:
    """The images of a table in the order of their first row; captions of several rows are joined."""
    folder = _image_folder(path, data, base_dir)
    image_column = data.image or "image"
    caption_column = data.caption or "caption"
    group_column = "" if data.split_by == "source" else data.split_by
    required = {"data.image": image_column, "data.caption": caption_column, "data.split_by": group_column}
    required = {option: name for option, name in required.items() if name}
    is_json = suffix(path) == ".jsonl"
    records: dict[str, CaptionRecord] = {}
    for fields, location in rows(path, data.columns, required, {caption_column: (list,)} if is_json else {}):
        captions = _captions(fields[caption_column], is_json, location)
        name = fields[image_column].strip()
        image = str(folder / name) if name else ""
        known = records.get(image)
        if known is not None and name:
            records[image] = known._replace(captions=known.captions + captions)
            continue
        key = image or location  # a row without an image is counted as such
        records[key] = CaptionRecord(image, captions, fields[group_column] if group_column else name, location)
    return list(records.values())


def _captions(text: str, is_json: bool, location: str) -> tuple[str, ...]:
    if not (is_json and text.startswith("[")):
        return (text,) if text.strip() else ()
    try:
        values = json.loads(text)
    except ValueError:  # a caption that begins with a bracket
        return (text,)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"{location}: captions {text:.60}: expected a text or a list of texts")
    return tuple(value for value in values if value.strip())


def records(recipe: Recipe, split: str) -> Iterator[CaptionRecord]:
    """Every image of a split."""
    data = CaptionData.of(recipe)
    if not data.synthetic:
        base_dir = Path(recipe.origin)
        yield from held(read_table(file_of(data, split, base_dir), data, base_dir), data, split)
        return
    if data.synthetic not in SYNTHETIC:
        hint = nearest(data.synthetic, SYNTHETIC)
        raise UserError(f"data.synthetic = '{data.synthetic}' is not a dataset of captions{hint}")
    for index in range(int(getattr(data, split))):
        name = synthetic_name(SYNTHETIC_SEED, split, index)
        yield CaptionRecord(name, (scene(SYNTHETIC_SEED, split, index).caption,), name, name)


def hashes(recipe: Recipe, split: str) -> dict[str, str]:
    """The hashes of all that a split is read from: the table, and its images or their archive."""
    data = CaptionData.of(recipe)
    if data.synthetic:
        description = f"{data.synthetic} {SYNTHETIC_SEED} {split} {getattr(data, split)}"
        return {data.synthetic: hashlib.sha256(description.encode()).hexdigest()}
    base_dir = Path(recipe.origin)
    path = file_of(data, split, base_dir)
    folder = _image_folder(path, data, base_dir)
    if folder.is_file():
        return hash_files(path) | {folder.name: content_hash(folder)}
    files = {record.image: Path(record.image) for record in read_table(path, data, base_dir)}
    return hash_files(path) | {"images": hash_together({name: file for name, file in files.items() if file.is_file()})}


def _image_folder(path: Path, data: CaptionData, base_dir: Path | None) -> Path:
    """The folder or .zip that the paths of images are relative to."""
    return find(data.images, base_dir, folders_allowed=True) if data.images else path.parent


# ── prepared ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class CaptionDataset(RaggedDataset):
    """Images, and captions as token ids without begin and end, each with the index of its image."""

    def __init__(self, columns: Mapping[str, Column], facts: Facts):
        super().__init__(columns, facts)
        self.image_indices = columns["image"].values
        self.target_lengths = columns["target_lengths"].values
        self.source_lengths = np.ones(len(self.target_lengths), np.int32)  # in batches all images count the same

    def __len__(self) -> int:
        return len(self.target_lengths)

    @property
    def num_images(self) -> int:
        return len(self.columns["shape"])

    def image(self, image: int) -> np.ndarray:
        return self.columns["pixels"][image].reshape(self.columns["shape"][image])

    def name(self, image: int) -> str:
        return self.columns["name"].text(image)

    def references(self, image: int) -> list[str]:
        """All captions of an image."""
        return json.loads(self.columns["references"].text(image))

    def target(self, index: int) -> np.ndarray:
        return self.columns["target"][index]


def prepare_captions(recipe: Recipe, split: str, processor: Any, cache: Path) -> CaptionDataset | None:
    """A prepared split; None if the recipe has no such split."""
    data = CaptionData.of(recipe)
    if not getattr(data, split):
        return None
    tokenizer: Tokenizer = processor.target
    images: ImageProcessor = processor.source
    known = hashes(recipe, split)
    location = "" if data.synthetic else str(file_of(data, split, Path(recipe.origin)).absolute())
    key = [FORMAT, options_key(data, split), location, json.dumps(known)]
    folder = cache_path(cache, [*key, json.dumps([images.size, images.resample, images.channels]), tokenizer.content()])
    layouts = {"pixels": Layout("uint8"), "shape": SHAPE, "name": TEXT, "references": TEXT}
    layouts |= {"image": SCALAR, "target": Layout(smallest_uint(tokenizer.size)), "target_lengths": SCALAR}
    report = Report(unit="images")

    def write(writer: DatasetWriter) -> None:
        writer.hashes = known
        with shown("preparing: {} images") as show:
            for record in records(recipe, split):
                _write(writer, record, processor, data.max_length)
                show(report.read)
        if not report.kept:
            raise UserError(f"no image left to use: {report}")

    return prepare(folder, layouts, write, CaptionDataset, report)


def _write(writer: DatasetWriter, record: CaptionRecord, processor: Any, max_length: int) -> None:
    report = writer.report
    report.read += 1
    if not (record.image and record.captions):
        report.skip("no caption" if record.image else "no image", record.location)
        return
    if not exists(record.image):
        report.skip("image not found", f"{record.location}: {record.image}")
        return
    tokens = [row for row in processor.target.encode_many(list(record.captions)) if 0 < len(row) <= max_length]
    if not tokens:
        report.skip(f"longer than {max_length} tokens", record.location)
        return
    try:
        image = processor.source.resize(read_image(record.image).pixels)
    except UserError as error:
        report.skip("unreadable image", str(error))
        return
    for _ in range(len(record.captions) - len(tokens)):
        report.skip(f"caption longer than {max_length} tokens, of an image with others", record.location)
    index = report.kept
    report.kept += 1
    writer["pixels"].extend([image.reshape(-1)])
    writer["shape"].extend_array(image.shape)
    writer["name"].extend_texts([record.image])
    writer["references"].extend_texts([json.dumps(record.captions)])
    writer["image"].extend_array([index] * len(tokens))
    writer["target"].extend(tokens)
    writer["target_lengths"].extend_array([len(row) for row in tokens])


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def collate_images(dataset: CaptionDataset, images: Sequence[int], processor: ImageProcessor) -> ImageBatch:
    """These images of a split as one batch."""
    return ImageBatch(processor.normalise([processor.centre(dataset.image(image)) for image in images]))


def augmented_images(
    dataset: CaptionDataset, indices: Sequence[int], processor: ImageProcessor, augment: Augmentation, epoch: int
) -> ImageBatch:
    """The images of these samples, changed at random as in this epoch."""
    size = processor.crop or processor.size
    if not isinstance(size, tuple):
        raise UserError(
            "the model's processor (preprocessor_config.json) gives images of different sizes: set a crop_size"
        )
    stored = [dataset.image(int(dataset.image_indices[index])) for index in indices]
    return ImageBatch(processor.normalise_tensor(augment(stored, indices, epoch, size)))


def collate_captions(
    dataset: CaptionDataset, indices: Sequence[int], processor: Any, source: ImageBatch | None = None
) -> Seq2SeqBatch:
    """These samples, an image and a caption each, as one batch; `source` are their images, if they are augmented."""
    if source is None:
        images = [int(dataset.image_indices[index]) for index in indices]
        source = collate_images(dataset, images, processor.source)
    target = collate_targets([dataset.target(index) for index in indices], processor.target)
    return Seq2SeqBatch(source, target, torch.tensor(list(indices), dtype=torch.int64))
