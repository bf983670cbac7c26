"""Recordings with transcripts: read from tables and folders, prepared once, and batched.

A transcript may have the time of each unit, as alignments have: "0.07:0.11:Z 0.11:0.28:IH".
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.audio import sources
from regard.audio.augment import AudioAugmentation
from regard.audio.dataset import AudioDataset, Preparation, prepare_recordings
from regard.audio.processor import AudioProcessor
from regard.config.recipe import Recipe
from regard.data.cache import options_key
from regard.data.files import Record
from regard.data.splits.hashed import fractions
from regard.data.splits.selected import held, selected_split
from regard.decoding.ctc import required_frames
from regard.errors import UserError, nearest
from regard.tasks.seq2seq import Seq2SeqBatch, collate_targets
from regard.tasks.transcribe.options import TranscribeData
from regard.tasks.transcribe.timing import TimedText

TIMED_UNIT = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?):(\S+)")
TOO_SHORT = "more tokens than CTC has states"
BY_CONTENT = ("", "source", "audio")  # values of data.split_by: equal recordings are in the same split


class Transcribed(NamedTuple):
    """A reference transcript, and the times of its units if they are known."""

    text: str
    units: tuple[TimedText, ...] = ()


def parse_transcript(text: str, data: TranscribeData, location: str) -> Transcribed:
    """A transcript without the units that are ignored."""
    if data.words:
        if text.strip() not in data.words:
            raise UserError(f"{location}: '{text:.40}' is not in data.words{nearest(text.strip(), data.words)}")
        return Transcribed(data.words[text.strip()])
    words = text.split()
    timed = [TIMED_UNIT.fullmatch(word) for word in words]
    if words and all(timed):
        units = [TimedText(match[3], float(match[1]), float(match[2])) for match in timed if match]
        units = [unit for unit in units if unit.text not in data.ignore]
        return Transcribed(" ".join(unit.text for unit in units), tuple(units))
    if not data.ignore:
        return Transcribed(text)
    return Transcribed(" ".join(word for word in words if word not in data.ignore))


def records(recipe: Recipe, split: str) -> Iterator[Record]:
    """Every recording of a split: its name is the source, its transcript the target."""
    data = TranscribeData.of(recipe)
    if data.synthetic:
        raise UserError(f"data.synthetic = '{data.synthetic}' is not a dataset of recordings: name a folder or a table")
    return held(_records(data, split, Path(recipe.origin)), data, split)


def _records(data: TranscribeData, split: str, base_dir: Path) -> Iterator[Record]:
    text = data.text or "text"
    column = "" if data.split_by in (*BY_CONTENT, data.audio) else data.split_by
    by_content = any(fractions(data)) and not column
    for name, fields, location in sources.list_split(data, split, base_dir, _columns(data)):
        group = fields[column] if column else sources.content_group(name) if by_content else name
        target = parse_transcript(fields[text], data, location).text
        yield Record(name, target, "", group, location, split=selected_split(fields, data, split, location))


def _columns(data: TranscribeData) -> dict[str, str]:
    column = "" if data.split_by in (*BY_CONTENT, data.audio) else data.split_by
    return {"data.text": data.text or "text", "data.split_by": column}


def timed_references(recipe: Recipe, split: str) -> dict[str, tuple[TimedText, ...]]:
    """The units of each recording of a split whose transcript has their times, by its name."""
    data = TranscribeData.of(recipe)
    listed = sources.list_split(data, split, Path(recipe.origin), _columns(data))
    parsed = ((each.name, parse_transcript(each.fields[data.text or "text"], data, each.location)) for each in listed)
    return {name: transcript.units for name, transcript in parsed if transcript.units}


class Limits(NamedTuple):
    """What samples may have; others are skipped and counted."""

    max_frames: int
    max_tokens: int
    stride: int = 0  # frames per state, of which CTC needs one for each token; 0: any

    def reject(self, frames: int, target: Sequence[int]) -> str:
        """Why a transcript cannot be used with so many frames; empty if it can."""
        if len(target) > self.max_tokens:
            return f"longer than {self.max_tokens} tokens"
        if self.stride and required_frames(target) > -(-frames // self.stride):
            return TOO_SHORT
        return ""


def prepare(recipe: Recipe, split: str, processor: Any, cache: Path, limits: Limits) -> AudioDataset | None:
    """A prepared split; None if the recipe has no such split."""
    data = TranscribeData.of(recipe)
    if not getattr(data, split):
        return None
    base_dir = Path(recipe.origin)
    hashes = sources.hashes(data, split, base_dir)
    location = str(sources.locate(data, split, base_dir).absolute())
    key = [
        "transcripts",
        location,
        options_key(data, split, ("max_length", "max_seconds")),
        json.dumps(hashes),
        str(limits),
    ]
    augmentation = augmentation_of(recipe)
    speeds = augmentation.speeds if split == "train" else (1.0,)
    preparation = Preparation(processor.source, processor.target, limits.max_frames, speeds, limits.reject)
    return prepare_recordings(records(recipe, split), key, preparation, cache, hashes)


def augmentation_of(recipe: Recipe) -> AudioAugmentation:
    return AudioAugmentation(recipe.augment, recipe.seed)  # type: ignore[arg-type]


def collate(
    dataset: AudioDataset, indices: Sequence[int], processor: Any, frames: list[Tensor] | None = None
) -> Seq2SeqBatch:
    """These samples as one batch; `frames` are their features, if they are augmented."""
    audio: AudioProcessor = processor.source
    source = audio.collate([dataset.frames(index) for index in indices] if frames is None else frames)
    target = collate_targets([dataset.target(index) for index in indices], processor.target)
    return Seq2SeqBatch(source, target, torch.tensor(list(indices), dtype=torch.int64))
