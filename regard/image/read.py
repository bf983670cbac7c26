"""Image files, Pillow images and arrays → pixels. What cannot be read is a `UserError` that names the file.

Shapes: pixels (height, width, channels) of type uint8, with 1 (grey) or 3 (RGB) channels.
"""

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from regard.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 26  # of one image, from its header: 268 MB when decoded
MAX_BYTES = 1 << 28  # of a file

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")  # decoders that run no other program

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")

GREY_MODES = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")

WHITE = 255


class Decoded(NamedTuple):
    """An image in 8 bits, and the channels that its file has: 1 grey, 2 grey and alpha, 3 colour, 4 also alpha."""

    pixels: np.ndarray
    channels: int


def pillow() -> Any:
    """Pillow's module `Image`; it comes with an extra."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("images need Pillow: pip install 'regard[vision]'") from None
    return Image


def is_image_file(path: Path) -> bool:
    """Whether the name of a file is that of an image."""
    return path.suffix.lower() in SUFFIXES


def list_images(folder: Path) -> list[Path]:
    """All images of a folder and of its subfolders, in order, without those that are hidden by a dot in their path."""
    paths = (path for path in folder.rglob("*") if is_image_file(path) and path.is_file())
    return sorted(path for path in paths if not any(name.startswith(".") for name in path.relative_to(folder).parts))


def read_file(path: Path) -> Decoded:
    """The first frame of an image file, rotated as its EXIF data says, transparency on white."""
    try:
        info = path.stat()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: image not found ({getattr(error, 'strerror', error)})") from None
    if not stat.S_ISREG(info.st_mode):
        raise UserError(f"{path}: expected an image file, this is {'a folder' if path.is_dir() else 'a device'}")
    if info.st_size > MAX_BYTES:
        raise UserError(f"{path}: {info.st_size:,} bytes are over the limit of {MAX_BYTES:,} for an image")
    return decode(path, str(path))


def decode(file: Path | BinaryIO, name: str) -> Decoded:
    """The image of a file; errors name it `name`."""
    image_module = pillow()
    with _readable(f"{name}: "), warnings.catch_warnings():
        warnings.simplefilter("ignore", image_module.DecompressionBombWarning)  # `_decoded` has its own limit
        with image_module.open(file, formats=FORMATS) as image:
            return _decoded(image)


def from_value(value: Any) -> np.ndarray:
    """The pixels of a Pillow image, or of an array (height, width[, channels]) of type uint8."""
    if hasattr(value, "getbands"):
        with _readable():
            return _decoded(value).pixels
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)):
        raise UserError(
            f"an array of type {pixels.dtype} and shape {pixels.shape}: expected uint8 (height, width) or "
            "(height, width, channels) with 1, 3 or 4 channels"
        )
    if pixels.ndim == 3 and pixels.shape[2] == 4 and pixels.size:
        return from_value(pillow().fromarray(pixels))
    _check_size(*pixels.shape[1::-1])
    return pixels.reshape(*pixels.shape[:2], -1)


@contextmanager
def _readable(prefix: str = "") -> Iterator[None]:
    """What Pillow cannot read as a `UserError`."""
    image_module = pillow()
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}{error}") from None
    except image_module.UnidentifiedImageError:
        raise UserError(f"{prefix}not an image; expected {', '.join(FORMATS)}") from None
    except image_module.DecompressionBombError:
        raise UserError(f"{prefix}more than {MAX_PIXELS:,} pixels: resize the image") from None
    except Exception as error:  # decoders raise nearly every type for damaged files
        raise UserError(f"{prefix}the image is damaged ({type(error).__name__}: {error})") from None


def _check_size(width: int, height: int) -> None:
    if not width * height:
        raise UserError(f"{width} × {height}: has no pixels")
    if width * height > MAX_PIXELS:
        raise UserError(f"{width} × {height} pixels are more than {MAX_PIXELS:,}: resize the image")


def _decoded(image: "Image") -> Decoded:
    """A Pillow image of any mode; its size is checked before it is decoded. 16 bits keep their high byte."""
    from PIL import ImageOps

    _check_size(*image.size)
    grey = image.mode in GREY_MODES
    channels = (1 if grey else 3) + image.has_transparency_data
    image.load()
    values_16_bit = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
    image = ImageOps.exif_transpose(image)
    if values_16_bit:
        return Decoded((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)[..., None], 1)
    if image.mode in ("I", "F"):
        raise UserError(f"has 32 bits per pixel (mode '{image.mode}'), of unknown range: convert it to 8 or 16 bits")
    if image.has_transparency_data:
        background = pillow().new("RGBA", image.size, (WHITE,) * 4)
        background.alpha_composite(image.convert("RGBA"))
        image = background
    pixels = np.asarray(image.convert("RGB"))
    return Decoded(pixels[..., :1] if grey else pixels, channels)


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """As grey (1 channel) or colour (3 channels); the luma of ITU-R BT.601, as Pillow computes it."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, 2)
    return np.asarray(pillow().fromarray(pixels).convert("L"))[..., None]
