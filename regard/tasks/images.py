"""Images as inputs of tasks: files, Pillow images and arrays → pixels; and the axes of attention over their patches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.trace import Axis
from regard.errors import UserError
from regard.image.read import from_value, list_images
from regard.image.sources import read_image
from regard.layers.image_encoder import ImageEncoder, SiteGeometry
from regard.tasks.predictor import RunInput


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
            return read_image(str(value)).pixels
        if not is_single_image(value):
            raise UserError(f"is no image: expected a file, a Pillow image or an array, not {value!r:.60}")
        return from_value(value)
    except UserError as error:
        raise UserError(error.message, index) from None


def image_axis(geometry: SiteGeometry) -> Axis:
    """The positions of an image: tokens such as [CLS], then cells as "row,column"."""
    cells = [f"{row},{column}" for row in range(geometry.rows) for column in range(geometry.columns)]
    return Axis([*geometry.tokens, *cells], "patch", (geometry.rows, geometry.columns))


def encoder_axes(encoder: ImageEncoder, height: int, width: int) -> dict[str, tuple[Axis, Axis]]:
    """The axes of every attention site of a vision encoder, for images of this size."""
    axes = {site: image_axis(geometry) for site, geometry in encoder.geometry(height, width).items()}
    return {site: (axis, axis) for site, axis in axes.items()}
