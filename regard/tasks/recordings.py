"""Recordings as inputs of tasks: files and arrays → samples; and their features on the axis of a trace."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.trace import Axis
from regard.audio.read import from_value, list_recordings, read_audio
from regard.data.archives import archived
from regard.errors import UserError
from regard.tasks.predictor import RunInput


def is_single_recording(inputs: Any) -> bool:
    """Whether this is one recording and not several: a name, an array, or an array with its rate."""
    is_pair = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], int)
    return isinstance(inputs, str | Path | np.ndarray | Mapping) or is_pair


def recordings_of_arguments(arguments: Sequence[str]) -> Iterator[RunInput]:
    """Files, and all recordings of folders."""
    for argument in arguments:
        if not Path(argument).is_dir():
            yield RunInput(argument, argument)
            continue
        paths = list_recordings(Path(argument))
        if not paths:
            raise UserError(f"{argument}: the folder has no recordings")
        yield from (RunInput(str(path), str(path)) for path in paths)


def recording_of_row(name: str, location: str) -> RunInput:
    """A recording of a table as an input; its path is relative to the folder of the table."""
    table = Path(location.rpartition(":")[0])
    return RunInput(str(table.parent / name.strip()) if name.strip() else "", location)


def read_samples(value: Any, rate: int, index: int | None = None) -> np.ndarray:
    """The samples of an input at this rate. `index` is the input's, for errors."""
    try:
        if not isinstance(value, str | Path):
            return from_value(value, rate)
        packed = archived(str(value))
        return read_audio(io.BytesIO(packed.read()), rate, str(value)) if packed else read_audio(value, rate)
    except UserError as error:
        raise UserError(error.message, index) from None


def time_axis(states: int, step: float) -> Axis:
    """The states of an encoder, labelled with the seconds at which each begins."""
    return Axis([f"{index * step:.2f} s" for index in range(states)], "state")
