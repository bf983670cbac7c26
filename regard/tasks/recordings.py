"""Recordings as inputs of tasks: names of files, and arrays of samples → features; and the time axis of traces."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import Axis, Picture
from regard.audio.processor import AudioProcessor
from regard.audio.read import from_value, is_audio_file, list_recordings
from regard.audio.sources import exists, read_recording, recording_header
from regard.data.archives import is_archive, members
from regard.errors import UserError
from regard.tasks.predictor import RunInput

MIN_HEIGHT = 96  # pixels of a spectrogram
MAX_VALUES = 1 << 20  # that its contrast is computed from:
CONTRAST = torch.tensor([0.02, 0.995])  # these quantiles are black and white


class AudioRow(NamedTuple):
    """A recording that is read when its batch is made, so that memory holds one batch."""

    value: Any  # its name, or samples
    length: int  # in frames, as its header says
    truncated: bool = False


def is_single_recording(inputs: Any) -> bool:
    """Whether this is one recording and not several."""
    is_pair = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], int)
    return isinstance(inputs, str | Path | Mapping | np.ndarray) or is_pair


def recordings_of_arguments(arguments: Sequence[str]) -> Iterator[RunInput]:
    """Files, and all recordings of folders and archives."""
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            names = [str(file) for file in list_recordings(path)]
        elif is_archive(path) and path.is_file():
            names = [f"{path}/{name}" for name in members(path) if is_audio_file(Path(name))]
        else:
            names = [argument]
        if not names:
            raise UserError(f"{argument}: has no recordings")
        yield from (RunInput(name, name) for name in names)


def recording_of_row(name: str, location: str) -> RunInput:
    """A recording of a table as an input; its path is relative to the folder of the table."""
    table = Path(location.rpartition(":")[0])
    return RunInput(str(table.parent / name.strip()) if name.strip() else "", location)


def encode_recordings(
    values: Sequence[Any], processor: AudioProcessor, max_frames: int, truncate: bool = False
) -> list[AudioRow]:
    """Recordings as rows; one that is longer than the network reads is an error, or truncated."""
    rows = []
    for index, value in enumerate(values):
        samples = count_samples(value, processor.rate, index)
        length = processor.features.frames(max(samples, processor.window_samples))
        if length > max_frames and not truncate:
            limit = max_frames * processor.frame_seconds
            raise UserError(
                f"has {samples / processor.rate:.1f} seconds, but the model reads at most {limit:g}: split it, or "
                "truncate it (--truncate)",
                index,
            )
        rows.append(AudioRow(value, min(length, max_frames), length > max_frames))
    return rows


def count_samples(value: Any, rate: int, index: int | None = None) -> int:
    """The number of samples of a recording at this rate, from its header where it says so."""
    if isinstance(value, str | Path) and exists(str(value)):
        try:
            header = recording_header(str(value))
        except UserError as error:
            raise UserError(error.message, index) from None
        if header.seconds is not None:
            return round(header.seconds * rate)
    return len(read_samples(value, rate, index))


def read_samples(value: Any, rate: int, index: int | None = None) -> np.ndarray:
    """The samples of an input: the name of a recording, or an array. `index` is the input's, for errors."""
    try:
        if isinstance(value, str | Path):
            if not exists(str(value)):
                raise UserError(f"is not an audio file: {str(value)!r:.200}")
            return read_recording(str(value), rate)
        if not is_single_recording(value):
            raise UserError(f"is no recording: expected a file or an array, not {value!r:.60}")
        return from_value(value, rate)
    except UserError as error:
        raise UserError(error.message, index) from None


def row_features(row: AudioRow, processor: AudioProcessor) -> Tensor:
    """The features of a row."""
    return processor.extract(read_samples(row.value, processor.rate))[: row.length]


def time_axis(states: int, seconds: float, share: float = 1.0) -> Axis:
    """The states of an encoder, labelled with the time at which each begins; `seconds` is from one to the next.

    They are a row of patches of the spectrogram; `share` is their duration as a share of the recording's.
    """
    labels = [f"{index * seconds:.2f} s" for index in range(states)]
    return Axis(labels, "frame", (1, states), (1.0, share))


def spectrogram(frames: Tensor, name: str = "") -> Picture:
    """Features (frames, bins) as a grey image for a trace: a column for each frame, low frequencies at the bottom."""
    low, high = torch.quantile(frames.flatten()[:: max(1, frames.numel() // MAX_VALUES)], CONTRAST)
    grey = (255 * (frames - low) / (high - low).clamp(min=1e-6)).clamp(0, 255).byte().flip(1).T
    pixels = grey.repeat_interleave(-(-MIN_HEIGHT // grey.size(0)), 0)[:, :, None]
    return Picture(pixels, (0, 0, grey.size(1), pixels.size(0)), name or "recording")
