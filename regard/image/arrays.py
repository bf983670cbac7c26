"""Files with all images of a dataset in one array: .npz (numpy) and IDX (LeCun et al., MNIST), also as .gz.

train.npz                       arrays `images` or `x` (images, height, width[, channels]), `labels` or `y` (images)
train-images-idx3-ubyte[.gz]    labels in train-labels-idx1-ubyte[.gz]
"""

import gzip
import math
import re
import struct
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from regard.data.archives import ZIP_ERRORS
from regard.errors import UserError, listed

MAX_ARRAY_BYTES = 1 << 31

IMAGE_NAMES = ("images", "x")
LABEL_NAMES = ("labels", "y")

IDX_NAME = re.compile(r"idx\d-ubyte(\.gz)?$")
IDX_TYPES = {0x08: "uint8"}


class ImageArrays(NamedTuple):
    """All images of a file, and their labels as text; none if it has no labels."""

    images: np.ndarray  # (images, height, width, channels)
    labels: Sequence[str] | None


def is_array_file(path: Path) -> bool:
    return path.suffix == ".npz" or bool(IDX_NAME.search(path.name))


def label_file(path: Path) -> Path | None:
    """The file of the labels of an IDX file, if there is one."""
    labels = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1"))
    return labels if labels != path and labels.is_file() else None


def read_arrays(path: Path) -> ImageArrays:
    """The images and labels of a file."""
    if not path.is_file():
        raise UserError(f"{path}: image file not found")
    labels = None if path.suffix == ".npz" else label_file(path)
    versions = (file.stat() for file in (path, labels) if file is not None)
    return _read(path, tuple((info.st_mtime_ns, info.st_size) for info in versions))


@lru_cache(maxsize=2)
def _read(path: Path, version: object) -> ImageArrays:
    try:
        images, labels = _read_npz(path) if path.suffix == ".npz" else _read_idx(path)
        return _checked(images, labels)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (*ZIP_ERRORS, KeyError, struct.error, SystemError) as error:  # SystemError: numpy on text beyond Unicode
        raise UserError(f"{path}: damaged file ({error})") from None
    except MemoryError as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _checked(images: np.ndarray, labels: np.ndarray | None) -> ImageArrays:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise UserError(
            f"images of type {images.dtype} and shape {images.shape}: expected uint8 (images, height, width) or "
            "(images, height, width, channels) with 1 or 3 channels"
        )
    if not images.size:
        raise UserError("has no images")
    if labels is not None and (labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "uiU"):
        raise UserError(
            f"labels of type {labels.dtype} and shape {labels.shape}: expected {len(images)} integers or texts"
        )
    names = None if labels is None else [str(each) for each in labels.tolist()]
    return ImageArrays(images.reshape(*images.shape[:3], -1), names)


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        image_name = next((name for name in IMAGE_NAMES if name in names), "")
        label_name = next((name for name in LABEL_NAMES if name in names), "")
        if not image_name:
            raise UserError(f"no array '{IMAGE_NAMES[0]}'; the file has: {listed(names)}")
        images = _read_member(archive, image_name)
        return images, _read_member(archive, label_name) if label_name else None


def _read_member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array of an archive, without pickle; its size is known before it is read."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        if dtype.hasobject or fortran:
            raise UserError(f"array '{name}' has type {dtype}{' in Fortran order' * fortran}: not supported")
        return _read_values(file, shape, dtype)


def _read_idx(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    labels = label_file(path)
    return _read_idx_array(path), _read_idx_array(labels) if labels is not None else None


def _read_idx_array(path: Path) -> np.ndarray:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
        if zero or kind not in IDX_TYPES or not 1 <= dimensions <= 4:
            raise UserError(f"{path.name} is not an IDX file of unsigned bytes")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        return _read_values(file, shape, np.dtype(IDX_TYPES[kind]))  # type: ignore[arg-type]


def _read_values(file: IO[bytes], shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    if size > MAX_ARRAY_BYTES:
        raise UserError(f"an array of {size:,} bytes is over the limit of {MAX_ARRAY_BYTES:,}: split the file")
    content = file.read(size)
    if len(content) < size:
        raise ValueError(f"{len(content):,} of {size:,} bytes")
    return np.frombuffer(content, dtype).reshape(shape)
