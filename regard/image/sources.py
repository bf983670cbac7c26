"""Images by name: what records of datasets, command lines and `model.run` call them.

photos/cat.jpg             a file
photos.zip/cat.jpg         a file in an archive
train.npz#17               an image of an array, counted from 0
shapes:1:validation:17     a synthetic image: seed, split and index
"""

import io
import re
import zipfile
from functools import lru_cache
from os.path import isfile  # False for names that no file can have, where `Path.is_file` raises
from pathlib import Path

from regard.data.synthetic.shapes import scene
from regard.errors import UserError
from regard.image.arrays import ZIP_ERRORS, is_array_file, read_arrays
from regard.image.read import MAX_BYTES, Decoded, decode, read_file

SYNTHETIC = re.compile(r"shapes:(\d{1,9}):(train|validation|test):(\d{1,9})")
ARCHIVED = re.compile(r"(.+?\.zip)/(.+)", re.IGNORECASE)
INDEXED = re.compile(r"(.+)#(\d{1,9})")


def synthetic_name(seed: int, split: str, index: int) -> str:
    return f"shapes:{seed}:{split}:{index}"


def read_image(name: str) -> Decoded:
    """The image of a name."""
    if match := SYNTHETIC.fullmatch(name):
        return Decoded(scene(int(match[1]), match[2], int(match[3])).image, 3)
    match = INDEXED.fullmatch(name)
    if match and is_array_file(path := Path(match[1])):
        images = read_arrays(path).images
        if int(match[2]) >= len(images):
            raise UserError(f"{name}: the file has {len(images)} images, counted from 0")
        pixels = images[int(match[2])]
        return Decoded(pixels, pixels.shape[2])
    if archived := _archived(name):
        return _read_archived(*archived)
    return read_file(Path(name))


def _archived(name: str) -> tuple[Path, str] | None:
    """The archive of a name, and the name inside it; None for other names."""
    match = ARCHIVED.fullmatch(name)
    return (Path(match[1]), match[2]) if match and isfile(match[1]) else None


def _read_archived(path: Path, member: str) -> Decoded:
    name = f"{path}/{member}"
    archive = _archive(path, path.stat().st_mtime_ns)
    try:
        with archive.open(member) as file:
            content = file.read(MAX_BYTES + 1)  # whatever size its header states
    except KeyError:
        raise UserError(f"{name}: the archive has no such file") from None
    except ZIP_ERRORS as error:
        raise UserError(f"{name}: cannot be read ({error})") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{name}: more than {MAX_BYTES:,} bytes, the limit for an image")
    return decode(io.BytesIO(content), name)


@lru_cache(maxsize=4)
def _archive(path: Path, modified: int) -> zipfile.ZipFile:
    """An archive, which stays open; `modified` is its time, so that a changed one is opened again."""
    try:
        return zipfile.ZipFile(path)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a readable .zip file ({error})") from None


def exists(name: str) -> bool:
    """Whether a name is that of an image, as far as that is known without reading it."""
    if archived := _archived(name):
        path, member = archived
        return member in _archive(path, path.stat().st_mtime_ns).NameToInfo
    match = INDEXED.fullmatch(name)
    return bool(SYNTHETIC.fullmatch(name)) or isfile(match[1] if match else name) or isfile(name)
