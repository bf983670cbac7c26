"""Images by name: what records of datasets, command lines and `model.run` call them.

photos/cat.jpg             a file
photos.zip/cat.jpg         a file in an archive
train.npz#17               an image of an array, counted from 0
shapes:1:validation:17     a synthetic image: seed, split and index
"""

import io
import re
from os.path import isfile  # False for names that no file can have, where `Path.is_file` raises
from pathlib import Path

from regard.data.archives import archived
from regard.data.synthetic.shapes import scene
from regard.errors import UserError
from regard.image.arrays import is_array_file, read_arrays
from regard.image.read import Decoded, decode, read_file

SYNTHETIC = re.compile(r"shapes:(\d{1,9}):(train|validation|test):(\d{1,9})")
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
    if file := archived(name):
        return decode(io.BytesIO(file.read()), name)
    return read_file(Path(name))


def exists(name: str) -> bool:
    """Whether a name is that of an image, as far as that is known without reading it."""
    if file := archived(name):
        return file.exists()
    match = INDEXED.fullmatch(name)
    return bool(SYNTHETIC.fullmatch(name)) or isfile(match[1] if match else name) or isfile(name)
