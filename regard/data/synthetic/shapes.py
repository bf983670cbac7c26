"""Synthetic images of coloured shapes: `data.synthetic = "shapes"`.

    label     triangle                        the shape of the largest object
    caption   a red circle left of a blue triangle
    objects   colour, shape and mask of each, in the order of the caption

A scene has one or two objects on noise. It is a pure function of (seed, split, index), so that samples are reproducible
one by one. Attention can be scored against the masks. It does not resemble photographs: scores only show that a model
learns.

Shapes: image (size, size, 3) of type uint8, mask (size, size) of type bool.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from regard.data.splits import SPLITS

SIZE = 32  # pixels on each side

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (225, 35, 35),
    "green": (40, 190, 60),
    "blue": (50, 80, 235),
    "yellow": (240, 215, 40),
    "purple": (165, 55, 200),
    "white": (245, 245, 245),
}

Region = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Whether a point belongs to a shape; x and y are from −1 to 1.
SHAPES: Mapping[str, Region] = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.34) & (np.maximum(abs(x), abs(y)) <= 1),
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.88,
    "triangle": lambda x, y: (y <= 0.8) & (y >= 2 * abs(x) - 1),
}

LARGE = (7.0, 8.5)  # radii in pixels of an image of 32
SMALL = (4.5, 5.5)


class SceneObject(NamedTuple):
    """One object of a scene, and the pixels that it covers."""

    colour: str
    shape: str
    mask: np.ndarray

    def __str__(self) -> str:
        return f"a {self.colour} {self.shape}"


class Scene(NamedTuple):
    """An image with what it shows."""

    image: np.ndarray
    label: str
    caption: str
    objects: tuple[SceneObject, ...]


class _ObjectPosition(NamedTuple):
    colour: str
    shape: str
    radius: float
    x: float
    y: float


def scene(seed: int, split: str, index: int, size: int = SIZE) -> Scene:
    """The scene of an index: a large object, and in two of three scenes a smaller one elsewhere."""
    rng = np.random.default_rng((seed, SPLITS.index(split), index))
    placed = [_draw_object(rng, LARGE, [])]
    if rng.random() < 2 / 3:
        placed.append(_draw_object(rng, SMALL, placed))
    label = placed[0].shape
    relation = ""
    if len(placed) == 2:
        horizontal = abs(placed[0].x - placed[1].x) >= abs(placed[0].y - placed[1].y)
        placed.sort(key=lambda each: each.x if horizontal else each.y)
        relation = " left of " if horizontal else " above "
    image = rng.normal(70, 14, (size, size, 3)).clip(0, 255)
    rows, columns = (np.mgrid[:size, :size] + 0.5) * SIZE / size
    objects = []
    for each in placed:
        mask = SHAPES[each.shape]((columns - each.x) / each.radius, (rows - each.y) / each.radius)
        shade = np.array(COLOURS[each.colour]) + rng.normal(0, 9, (size, size, 3))
        image = np.where(mask[..., None], shade, image)
        objects.append(SceneObject(each.colour, each.shape, mask))
    caption = relation.join(map(str, objects))
    return Scene(image.clip(0, 255).astype(np.uint8), label, caption, tuple(objects))


def _draw_object(
    rng: np.random.Generator, radii: tuple[float, float], others: list[_ObjectPosition]
) -> _ObjectPosition:
    """An object of a random colour and shape that touches no other; of the same colour or shape is none."""
    colours = [name for name in COLOURS if all(name != each.colour for each in others)]
    shapes = [name for name in SHAPES if all(name != each.shape for each in others)]
    colour = colours[rng.integers(len(colours))]
    shape = shapes[rng.integers(len(shapes))]
    while True:
        radius = rng.uniform(*radii)
        x, y = rng.uniform(radius, SIZE - radius, 2)
        if all(max(abs(x - each.x), abs(y - each.y)) > radius + each.radius for each in others):
            return _ObjectPosition(colour, shape, radius, x, y)
        if rng.random() < 0.02:  # the other object is in the middle: a smaller one fits beside it
            radii = (radii[0] * 0.8, radii[0])
