"""The image processor of a model ↔ preprocessor_config.json.

image ─▶ grey or RGB ─▶ resize ─▶ centre crop ─▶ rescale ─▶ normalise ─▶ pixels of a batch

Shapes: images (height, width, channels) of type uint8; tensors (batch, channels, height, width).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.small_files import read_text
from regard.errors import UserError
from regard.image.read import MAX_PIXELS, to_channels
from regard.image.transforms import BICUBIC, BILINEAR, centre_crop, crop_offset, resize, shortest_edge_size
from regard.layers.inputs import ImageBatch

FILE = "preprocessor_config.json"

SHARED_FILE = "processor_config.json"  # of a folder with a processor of images and text: its `image_processor`

MAX_EDGE = 1 << 13  # pixels

RESAMPLES = range(6)  # Pillow's codes

READ = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std", "do_convert_rgb"),
)
DEIT_DEFAULTS = {"size": 256, "resample": BICUBIC, "do_center_crop": True}  # where a file has no such keys

Size = tuple[int, int] | int | None  # height and width, or the length of the shorter side; None: as it is


@dataclass(frozen=True)
class ImageProcessor:
    """What a model does with an image before its first layer. Its channels are those of `mean`."""

    size: Size
    crop: tuple[int, int] | None = None
    resample: int = BILINEAR
    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    foreign: Mapping[str, Any] = field(default_factory=dict)  # keys of a loaded file that are written back
    files: ClassVar[tuple[str, ...]] = (FILE,)

    @classmethod
    def default(cls, height: int, width: int, channels: int) -> Self:
        """For a new model: resized to this size, values from −1 to 1."""
        return cls((height, width), mean=(0.5,) * channels, std=(0.5,) * channels)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The processor of a folder; without a file of its own, the default for the sizes in config.json."""
        for name in (SHARED_FILE, FILE):
            path = folder / name
            config = _read_json(path) if path.exists() else None
            config = config.get("image_processor") if config and name == SHARED_FILE else config
            if isinstance(config, dict):
                try:
                    return cls.from_config(config)
                except UserError as error:
                    raise UserError(f"{path}: {error}") from None
        return cls._from_model_config(folder / "config.json")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """From the keys of preprocessor_config.json; one that changes the computation in another way is an error."""
        foreign = dict(config)
        kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "")))
        defaults = DEIT_DEFAULTS if kind.startswith("DeiT") else {}
        config = defaults | {key: value for key, value in config.items() if value is not None}
        for key, value in config.items():
            if key.startswith("do_") and key not in READ and value:
                raise UserError(f"{key} = {value} changes the computation; only {key} = false is supported")
        if "crop_pct" in config:
            raise UserError(f"crop_pct = {config['crop_pct']} changes the computation; only null is supported")
        resample = config.get("resample", BILINEAR)
        if resample not in RESAMPLES:
            raise UserError(f"resample = {resample} is no resampling filter; expected 0 to {RESAMPLES[-1]}")
        normalise = config.get("do_normalize", True)
        mean = _channel_values(config, "image_mean", 0.5)
        std = _channel_values(config, "image_std", 0.5)
        if not normalise:
            mean, std = (0.0,) * len(mean), (1.0,) * len(mean)
        factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
        if type(factor) not in (int, float) or not 0 < factor < float("inf"):
            raise UserError(f"rescale_factor = {factor!r}: expected a positive number")
        if len(mean) != len(std) or not all(std):
            raise UserError(f"image_mean {list(mean)} and image_std {list(std)} do not fit each other")
        crop = _size(config, "crop_size") if config.get("do_center_crop") else None
        if isinstance(crop, int):
            raise UserError("crop_size has a shortest_edge: expected height and width")
        size = _size(config, "size") if config.get("do_resize", True) else None
        return cls(size, crop, int(resample), float(factor), mean, std, foreign)

    @classmethod
    def _from_model_config(cls, path: Path) -> Self:
        config = _read_json(path) if path.exists() else {}
        encoder = config.get("encoder")
        config = encoder if isinstance(encoder, dict) else config
        size = config.get("image_size")
        size = [size, size] if type(size) is int else size
        channels = config.get("num_channels", 3)
        if not isinstance(size, list) or len(size) != 2 or not all(type(edge) is int and edge > 0 for edge in size):
            raise UserError(
                f"{path.parent}: no {FILE}, and config.json has no image_size to replace it: copy the file from where "
                "the model comes from"
            )
        if channels not in (1, 3):
            raise UserError(f"{path}: num_channels = {channels} is not supported; images have 1 or 3")
        height, width = size
        return cls.default(height, width, channels)

    def to_config(self) -> dict[str, Any]:
        """The keys of preprocessor_config.json, over those of the file that was loaded."""
        size = {"shortest_edge": self.size} if isinstance(self.size, int) else _edges(self.size)
        ours = {
            "do_resize": self.size is not None,
            "size": size,
            "resample": self.resample,
            "do_center_crop": self.crop is not None,
            "crop_size": _edges(self.crop),
            "do_rescale": self.factor != 1,
            "rescale_factor": self.factor,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        known = {"image_processor_type": "ViTImageProcessor", **self.foreign}
        ours = {key: known.get(key) if value is None else value for key, value in ours.items()}
        return {key: value for key, value in (known | ours).items() if value is not None or key in self.foreign}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(self.to_config(), indent=2) + "\n", encoding="utf-8")

    def content(self) -> str:
        return json.dumps([self.size, self.crop, self.resample, self.factor, self.mean, self.std])

    def stored_content(self) -> str:
        """All that determines an image of a prepared dataset: one before the crop."""
        return json.dumps([self.size, self.resample, self.channels])

    # ── pixels ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def output_size(self) -> tuple[int, int]:
        """The height and width of all images that the model is given."""
        size = self.crop or self.size
        if not isinstance(size, tuple):
            raise UserError(f"the model's processor ({FILE}) gives images of different sizes: set a crop_size")
        return size

    def resized_shape(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of an image of this size before the crop."""
        if self.size is None:
            return height, width
        return shortest_edge_size(height, width, self.size) if isinstance(self.size, int) else self.size

    def visible_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the pixels that the model is given of an image of this size.

        The box is larger than the image where the crop pads it.
        """
        rows, columns = self.resized_shape(height, width)
        crop_rows, crop_columns = self.crop or (rows, columns)
        top = crop_offset(rows, crop_rows)
        left = crop_offset(columns, crop_columns)
        down = height / rows
        across = width / columns
        return left * across, top * down, (left + crop_columns) * across, (top + crop_rows) * down

    def resize(self, image: np.ndarray) -> np.ndarray:
        """An image before the crop, as prepared datasets store it."""
        image = to_channels(image, self.channels)
        height, width = image.shape[:2]
        rows, columns = self.resized_shape(height, width)
        if rows * columns > MAX_PIXELS:
            raise UserError(f"{width} × {height} pixels: too narrow for a shorter side of {self.size}")
        return resize(image, rows, columns, self.resample)

    def centre(self, image: np.ndarray) -> np.ndarray:
        """The part of a resized image that the model is given."""
        return image if self.crop is None else centre_crop(image, *self.crop)

    def normalise(self, images: Sequence[np.ndarray]) -> Tensor:
        """Images of one size as a normalised tensor."""
        if len({image.shape for image in images}) > 1:
            sizes = sorted({f"{image.shape[1]} × {image.shape[0]}" for image in images})
            raise UserError(
                f"images of different sizes ({', '.join(sizes[:3])}): the model's processor does not resize"
            )
        return self.normalise_tensor(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float())

    def normalise_tensor(self, pixels: Tensor) -> Tensor:
        """Values from 0 to 255 as (value · factor − mean) ÷ std."""
        mean = torch.tensor(self.mean)[:, None, None]
        std = torch.tensor(self.std)[:, None, None]
        return pixels.mul(self.factor).sub(mean).div(std).contiguous()

    def __call__(self, images: Sequence[np.ndarray]) -> ImageBatch:
        return ImageBatch(self.normalise([self.centre(self.resize(image)) for image in images]))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(value).__name__}")
    return value


def _channel_values(config: Mapping[str, Any], key: str, default: float) -> tuple[float, ...]:
    values = config.get(key, [default] * 3)
    values = [values] * 3 if type(values) in (int, float) else values
    fits = isinstance(values, list) and len(values) in (1, 3)
    if not fits or not all(type(value) in (int, float) and abs(value) < float("inf") for value in values):
        raise UserError(f"{key} = {values!r:.60}: expected 3 numbers, or 1 of a grey image")
    return tuple(map(float, values))


def _size(config: Mapping[str, Any], key: str) -> tuple[int, int] | int:
    value = config.get(key, {"height": 224, "width": 224})
    value = {"height": value, "width": value} if type(value) is int else value
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(("height", "width"), value, strict=True))
    edges = {name: edge for name, edge in value.items() if edge is not None} if isinstance(value, dict) else {}
    if not all(type(edge) is int and 0 < edge <= MAX_EDGE for edge in edges.values()) or edges.keys() not in (
        {"height", "width"},
        {"shortest_edge"},
    ):
        raise UserError(
            f"{key} = {value!r:.60} is not supported; expected height and width, or shortest_edge, of 1 to {MAX_EDGE}"
        )
    return edges["shortest_edge"] if "shortest_edge" in edges else (edges["height"], edges["width"])


def _edges(size: tuple[int, int] | None) -> dict[str, int] | None:
    return None if size is None else dict(zip(("height", "width"), size, strict=True))
