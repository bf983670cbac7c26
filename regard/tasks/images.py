"""Images of tasks: in datasets, as inputs (files, Pillow images and arrays → pixels), and as pictures of traces."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.attention.recording import Recorder
from regard.attention.trace import Axes, Picture, Trace
from regard.config.options import DataOptions
from regard.data.cache import hash_together
from regard.data.synthetic.shapes import Scene, scene
from regard.errors import UserError, nearest
from regard.image.processor import ImageProcessor
from regard.image.read import from_value, list_images
from regard.image.sources import exists, read_image, synthetic_name
from regard.tasks.predictor import RunInput

COLUMNS = ("image", "file_name", "path")  # of a table of inputs; the first that it has

SYNTHETIC = ("shapes",)
SYNTHETIC_SEED = 1  # the same images for every seed of a run, so that runs can be compared


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_synthetic(data: DataOptions, content: str) -> None:
    if data.synthetic not in SYNTHETIC:
        hint = nearest(data.synthetic, SYNTHETIC)
        raise UserError(f"data.synthetic = '{data.synthetic}' is not a dataset of {content}{hint}")


def synthetic_scenes(data: DataOptions, split: str, content: str) -> Iterator[tuple[str, Scene]]:
    """The synthetic images of a split: their names, and what they show."""
    check_synthetic(data, content)
    for index in range(int(getattr(data, split))):
        yield synthetic_name(SYNTHETIC_SEED, split, index), scene(SYNTHETIC_SEED, split, index)


def hash_synthetic(data: DataOptions, split: str) -> dict[str, str]:
    """In place of the hashes of files."""
    description = f"{data.synthetic} {SYNTHETIC_SEED} {split} {getattr(data, split)}"
    return {data.synthetic: hashlib.sha256(description.encode()).hexdigest()}


def hash_images(names: Iterable[str]) -> dict[str, str]:
    """One hash of all images of a table that are files."""
    return {"images": hash_together({name: Path(name) for name in names if isfile(name)})}


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ImageRow(NamedTuple):
    """An image that is read when its batch is made, so that memory holds one batch."""

    value: Any  # its name, a Pillow image or an array
    truncated: bool = False


def is_single_image(inputs: Any) -> bool:
    """Whether this is one image and not several: a list, or an array with an axis for them."""
    is_array = isinstance(inputs, np.ndarray) and inputs.ndim < 4
    return isinstance(inputs, str | Path) or hasattr(inputs, "getbands") or is_array


def images_of_arguments(arguments: Sequence[str]) -> Iterator[RunInput]:
    """Files, and all images of folders."""
    for argument in arguments:
        if not Path(argument).is_dir():
            yield RunInput(argument, argument)
            continue
        images = list_images(Path(argument))
        if not images:
            raise UserError(f"{argument}: the folder has no images")
        yield from (RunInput(str(path), str(path)) for path in images)


def not_found(name: str | Path) -> str:
    """Why there is no image file of this name."""
    return f"is {'a folder, not an image' if Path(name).is_dir() else 'not an existing'} file: {str(name)!r:.200}"


def image_of_row(name: str, location: str) -> RunInput:
    """An image of a table as an input."""
    return RunInput(image_path(name, location), location)


def image_path(name: str, location: str) -> str:
    """The path of an image in a table, relative to the folder of the table; empty where the cell is."""
    table = Path(location.rpartition(":")[0])
    return str(table.parent / name.strip()) if name.strip() else ""


def read_pixels(value: Any, index: int | None = None) -> np.ndarray:
    """The pixels of an input: the name of an image, a Pillow image or an array. `index` is the input's, for errors."""
    try:
        if isinstance(value, str | Path):
            if not exists(str(value)):
                raise UserError(not_found(value))
            return read_image(str(value)).pixels
        if not is_single_image(value):
            raise UserError(f"is no image: expected a file, a Pillow image or an array, not {value!r:.60}")
        return from_value(value)
    except UserError as error:
        raise UserError(error.message, index) from None


def image_rows(values: Sequence[Any]) -> list[ImageRow]:
    """Inputs as rows; what is not an image, or a file that does not exist, is an error."""
    for index, value in enumerate(values):
        if isinstance(value, str | Path):
            if not exists(str(value)):
                raise UserError(not_found(value), index)
        elif not hasattr(value, "getbands") and not isinstance(value, np.ndarray):
            raise UserError(f"is no image: expected a file, a Pillow image or an array, not {value!r:.60}", index)
    return [ImageRow(value) for value in values]


def trace_of_image(recorder: Recorder, encoder: Any, processor: ImageProcessor, row: ImageRow, answer: str) -> Trace:
    """The recorded attention over an image: positions are the learned tokens, then the patches row by row."""
    pixels = read_pixels(row.value)
    size = processor([pixels]).pixels.shape[2:]
    axes = Axes(encoder.axes(*size), encoder.state_geometry(*size).axis(*size))
    return Trace(recorder, axes, answer, picture=picture_of(pixels, row.value, processor))


def picture_of(pixels: np.ndarray, value: Any, processor: ImageProcessor) -> Picture:
    """The image of a trace, with the box that the model is given of it; `value` is the input."""
    name = Path(value).name if isinstance(value, str | Path) else "image"
    return Picture(torch.tensor(pixels), processor.visible_box(*pixels.shape[:2]), name)
