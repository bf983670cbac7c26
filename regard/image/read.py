"""Image files, Pillow images and arrays → pixels. What cannot be read is a `UserError` that names the file.

Shapes: pixels (height, width, channels) of type uint8, with 1 (grey) or 3 (RGB) channels.
"""

import stat
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
    """All images of a folder and of the folders in it, in order."""
    return sorted(path for path in folder.rglob("*") if is_image_file(path) and path.is_file())


def read_file(path: Path) -> Decoded:
    """The first frame of an image file, rotated as its EXIF data says, transparency on white."""
    try:
        info = path.stat()
    except OSError as error:
        raise UserError(f"{path}: image not found ({error.strerror})") from None
    if not stat.S_ISREG(info.st_mode):
        raise UserError(f"{path}: expected an image file, this is {'a folder' if path.is_dir() else 'a device'}")
    if info.st_size > MAX_BYTES:
        raise UserError(f"{path}: {info.st_size:,} bytes are over the limit of {MAX_BYTES:,} for an image")
    return decode(path, str(path))


def decode(file: Path | BinaryIO, name: str) -> Decoded:
    """The image of a file; errors name it `name`."""
    image_module = pillow()
    from PIL import ImageOps

    try:
        with image_module.open(file, formats=FORMATS) as image:
            _check_size(image)
            channels = len(image.getbands())
            image.load()
            return Decoded(_to_pixels(ImageOps.exif_transpose(image)), channels)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except image_module.UnidentifiedImageError:
        raise UserError(f"{name}: not an image; expected {', '.join(FORMATS)}") from None
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning):
        raise UserError(f"{name}: more than {MAX_PIXELS:,} pixels: resize the image") from None
    except Exception as error:  # decoders raise nearly every type for damaged files
        raise UserError(f"{name}: the image is damaged ({type(error).__name__}: {error})") from None


def from_value(value: Any) -> np.ndarray:
    """The pixels of a Pillow image, or of an array (height, width[, channels]) of type uint8."""
    if hasattr(value, "getbands"):
        _check_size(value)
        return _to_pixels(value)
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)):
        raise UserError(
            f"an array of type {pixels.dtype} and shape {pixels.shape}: expected uint8 (height, width) or "
            "(height, width, channels) with 1, 3 or 4 channels"
        )
    if not pixels.size:
        raise UserError(f"an array of shape {pixels.shape} has no pixels")
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        return _to_pixels(pillow().fromarray(pixels))
    return pixels.reshape(*pixels.shape[:2], -1)


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """As grey (1 channel) or colour (3 channels); the luma of ITU-R BT.601, as Pillow computes it."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, 2)
    return np.asarray(pillow().fromarray(pixels).convert("L"))[..., None]


def _check_size(image: "Image") -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(f"{width} × {height} pixels are more than {MAX_PIXELS:,}: resize the image")


def _to_pixels(image: "Image") -> np.ndarray:
    """Any mode of Pillow in 8 bits: 16 bits keep their high byte, alpha is blended with white."""
    if image.mode.startswith("I;16"):
        return (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)[..., None]
    if image.mode in ("I", "F"):
        raise UserError(f"has 32 bits per pixel (mode '{image.mode}'), of unknown range: convert it to 8 or 16 bits")
    if image.mode in ("1", "L") and "transparency" not in image.info:
        return np.asarray(image.convert("L"))[..., None]
    if image.has_transparency_data:
        grey = image.mode in ("L", "LA", "La")
        image = image.convert("RGBA")
        background = pillow().new("RGBA", image.size, (WHITE,) * 4)
        background.alpha_composite(image)
        image = background.convert("RGB")
        return np.asarray(image)[..., :1] if grey else np.asarray(image)
    return np.asarray(image.convert("RGB"))
