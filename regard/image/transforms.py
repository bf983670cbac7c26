"""Deterministic transforms of pixels, as published image processors define them.

Shapes: pixels (height, width, channels) of type uint8.
"""

import math

import numpy as np

from regard.image.read import pillow

NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)  # Pillow's codes, which published configs have too


def resize(pixels: np.ndarray, height: int, width: int, resample: int = BILINEAR) -> np.ndarray:
    """To this size, antialiased."""
    if pixels.shape[:2] == (height, width):
        return pixels
    grey = pixels.shape[2] == 1
    image = pillow().fromarray(pixels[..., 0] if grey else pixels)
    resized = np.asarray(image.resize((width, height), resample))
    return resized[..., None] if grey else resized


def shortest_edge_size(height: int, width: int, edge: int) -> tuple[int, int]:
    """The height and width of an image whose shorter side becomes `edge`, in the same aspect ratio."""
    short, long = sorted((height, width))
    scaled = edge * long // short
    return (edge, scaled) if height <= width else (scaled, edge)


def centre_crop(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The centre of an image; a smaller image is padded with zeros."""
    rows = max(0, height - pixels.shape[0])
    columns = max(0, width - pixels.shape[1])
    if rows or columns:
        top = math.ceil(rows / 2)
        left = math.ceil(columns / 2)
        pixels = np.pad(pixels, ((top, rows - top), (left, columns - left), (0, 0)))
    top = (pixels.shape[0] - height) // 2
    left = (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]
