"""Images as inputs of tasks: files, Pillow images and arrays → pixels; and the axes of attention over their patches."""

from pathlib import Path
from typing import Any

import numpy as np

from regard.attention.trace import Axis
from regard.errors import UserError
from regard.image.read import from_value
from regard.image.sources import read_image
from regard.layers.image_encoder import ImageEncoder, SiteGeometry


def is_single_image(inputs: Any) -> bool:
    """Whether this is one image and not a list of them."""
    return not isinstance(inputs, list | tuple)


def read_pixels(value: Any, index: int | None = None) -> np.ndarray:
    """The pixels of an input: the name of an image, a Pillow image or an array. `index` is the input's, for errors."""
    try:
        return read_image(str(value)).pixels if isinstance(value, str | Path) else from_value(value)
    except UserError as error:
        raise UserError(error.message, index) from None


def show_image(value: Any) -> str:
    """An input for people."""
    return str(value) if isinstance(value, str | Path) else f"<{type(value).__name__}>"


def image_axis(geometry: SiteGeometry) -> Axis:
    """The positions of an image: tokens such as [CLS], then cells as "row,column", counted from 1."""
    cells = [f"{row + 1},{column + 1}" for row in range(geometry.rows) for column in range(geometry.columns)]
    return Axis([*geometry.tokens, *cells], "patch", (geometry.rows, geometry.columns))


def encoder_axes(encoder: ImageEncoder, height: int, width: int) -> dict[str, tuple[Axis, Axis]]:
    """The axes of every attention site of a vision encoder, for images of this size."""
    axes = {site: image_axis(geometry) for site, geometry in encoder.geometry(height, width).items()}
    return {site: (axis, axis) for site, axis in axes.items()}
