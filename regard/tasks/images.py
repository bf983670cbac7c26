"""Images as inputs of tasks: files, Pillow images and arrays → pixels; and as pictures of traces."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.attention.recording import Recorder
from regard.attention.trace import Axes, Picture, Trace
from regard.errors import UserError
from regard.image.processor import ImageProcessor
from regard.image.read import from_value, list_images
from regard.image.sources import exists, read_image
from regard.tasks.predictor import RunInput


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
    size = processor([read_pixels(row.value)]).pixels.shape[2:]
    axes = Axes(encoder.axes(*size), encoder.state_geometry(*size).axis(*size))
    return Trace(recorder, axes, answer, picture=picture_of(row.value, processor))


def picture_of(value: Any, processor: ImageProcessor) -> Picture:
    """The image of a trace, with the box that the model is given of it."""
    pixels = read_pixels(value)
    name = Path(value).name if isinstance(value, str | Path) else "image"
    return Picture(torch.tensor(pixels), processor.visible_box(*pixels.shape[:2]), name)
