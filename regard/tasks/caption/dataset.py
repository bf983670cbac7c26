"""Images with captions: read from tables or generated, grouped by image, prepared once, and batched.

A sample is an image with one of its captions; all captions of an image are its references.

Shapes: image (height, width, channels) of type uint8, as the processor resizes it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.config.recipe import Recipe
from regard.data.cache import Facts, content_hash, options_key, smallest_uint
from regard.data.files import find, hash_files, rows, suffix
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout
from regard.data.splits.hashed import file_of, held
from regard.errors import UserError
from regard.image.augment import Augmentation
from regard.image.dataset import Source, StoredImages, augmented, collate_images, prepare_stored, write_image
from regard.tasks.caption.options import CaptionData
from regard.tasks.images import hash_images, hash_synthetic, synthetic_scenes
from regard.tasks.seq2seq import Seq2SeqBatch, collate_targets
from regard.text.tokenizer import Tokenizer

FORMAT = "captions 1"  # part of every key: increase it when what is written besides the images changes


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
    for name, drawn in synthetic_scenes(data, split, "captions"):
        yield CaptionRecord(name, (drawn.caption,), name, name)


def hashes(recipe: Recipe, split: str) -> dict[str, str]:
    """The hashes of all that a split is read from: the table, and its images or their archive."""
    data = CaptionData.of(recipe)
    if data.synthetic:
        return hash_synthetic(data, split)
    base_dir = Path(recipe.origin)
    path = file_of(data, split, base_dir)
    folder = _image_folder(path, data, base_dir)
    if folder.is_file():
        return hash_files(path) | {folder.name: content_hash(folder)}
    return hash_files(path) | hash_images(record.image for record in read_table(path, data, base_dir))


def _image_folder(path: Path, data: CaptionData, base_dir: Path | None) -> Path:
    """The folder or .zip that the paths of images are relative to."""
    return find(data.images, base_dir, folders_allowed=True) if data.images else path.parent


# ── prepared ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class CaptionDataset(StoredImages):
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
    known = hashes(recipe, split)
    location = "" if data.synthetic else str(file_of(data, split, Path(recipe.origin)).absolute())
    key = [FORMAT, options_key(data, split), location, json.dumps(known), tokenizer.content()]
    columns = {"name": TEXT, "references": TEXT, "image": SCALAR}
    columns |= {"target": Layout(smallest_uint(tokenizer.size)), "target_lengths": SCALAR}

    def write(writer: DatasetWriter, record: CaptionRecord) -> None:
        _write(writer, record, processor, data.max_length)

    source = Source(records(recipe, split), key, known)
    return prepare_stored(CaptionDataset, source, processor.source, columns, write, cache)


def _write(writer: DatasetWriter, record: CaptionRecord, processor: Any, max_length: int) -> None:
    report = writer.report
    if not (record.image and record.captions):
        report.skip("no caption" if record.image else "no image", record.location)
        return
    tokens = [row for row in processor.target.encode_many(list(record.captions)) if 0 < len(row) <= max_length]
    if not tokens:
        report.skip(f"longer than {max_length} tokens", record.location)
        return
    index = report.kept
    if write_image(writer, record.image, record.location, processor.source) is None:
        return
    for _ in range(len(record.captions) - len(tokens)):
        report.skip(f"caption longer than {max_length} tokens, of an image with others", record.location)
    writer["name"].extend_texts([record.image])
    writer["references"].extend_texts([json.dumps(record.captions)])
    writer["image"].extend_array([index] * len(tokens))
    writer["target"].extend(tokens)
    writer["target_lengths"].extend_array([len(row) for row in tokens])


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def collate_captions(
    dataset: CaptionDataset,
    indices: Sequence[int],
    processor: Any,
    augmentation: Augmentation | None = None,
    epoch: int = 0,
) -> Seq2SeqBatch:
    """These samples, an image and a caption each, as one batch; with an augmentation as training samples."""
    images = [int(dataset.image_indices[index]) for index in indices]
    if augmentation is None:
        source = collate_images(dataset, images, processor.source)
    else:
        source = augmented([dataset.image(image) for image in images], indices, epoch, processor.source, augmentation)
    target = collate_targets([dataset.target(index) for index in indices], processor.target)
    return Seq2SeqBatch(source, target, torch.tensor(list(indices), dtype=torch.int64))
