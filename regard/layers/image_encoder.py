"""Encoders of images: networks with a state for each patch, or for each cell of a feature map.

    pixels ─▶ patches or convolutions ─▶ [CLS], cells ─▶ … ─▶ states ─▶ pool ─▶ one vector for the image

Shapes: pixels (batch, channels, height, width), states (batch, tokens + rows · columns, width).
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.attention.trace import Axis
from regard.attention.variants import multihead
from regard.layers.blocks import Block, FeedForward, Stack, StochasticDepth, linear_rates
from regard.layers.encoder import Encoder, Pool
from regard.layers.inputs import ImageBatch


@dataclass(frozen=True)
class ImageConfig:
    """The images that a network is made for; each family adds its own fields."""

    image_size: int = 224  # pixels: the height, and the width too unless `image_width` is set
    image_width: int = 0  # of images that are not square; 0: as `image_size`
    channels: int = 3  # 3: colour, 1: grey

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.image_size, self.image_width or self.image_size


@dataclass(frozen=True)
class SiteGeometry:
    """Where the positions of an attention site are in the image: `tokens` first, then a grid of cells row by row."""

    rows: int
    columns: int
    cell: int  # pixels on a side
    tokens: tuple[str, ...] = ()  # learned tokens that come before the cells, such as [CLS]

    @property
    def length(self) -> int:
        """Positions: tokens and cells."""
        return len(self.tokens) + self.rows * self.columns

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the grid in pixels; the last cells may extend beyond the image."""
        return 0, 0, self.columns * self.cell, self.rows * self.cell

    def axis(self, height: int, width: int) -> Axis:
        """These positions of an image of this size, for a trace."""
        extent = (self.rows * self.cell / height, self.columns * self.cell / width)
        return Axis.patches(self.rows, self.columns, self.tokens, extent)


class ImageEncoder(Encoder):
    """An encoder of images of any size; it is trained at `config.image_shape`."""

    input_type = ImageBatch
    tokens: ClassVar[tuple[str, ...]] = ()  # learned tokens before the cells of its states

    def __init__(self) -> None:
        super().__init__()
        self.pooler = None

    @property
    def dummy_inputs(self) -> tuple:
        parameter = next(self.parameters())
        shape = (1, self.config.channels, *self.config.image_shape)
        return (ImageBatch(torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)),)

    @property
    def max_positions(self) -> int:
        return self.state_geometry(*self.config.image_shape).length

    @abstractmethod
    def state_geometry(self, height: int, width: int) -> SiteGeometry:
        """Where the hidden states of an image of this size are."""

    @abstractmethod
    def geometry(self, height: int, width: int) -> Mapping[str, SiteGeometry]:
        """Where queries and keys are in an image of this size, for each attention site."""

    def axes(self, height: int, width: int) -> dict[str, tuple[Axis, Axis]]:
        """The queries and keys of each attention site, for a trace of an image of this size."""
        axes = {site: geometry.axis(height, width) for site, geometry in self.geometry(height, width).items()}
        return {site: (axis, axis) for site, axis in axes.items()}

    def pooled(self, states: Tensor, images: ImageBatch | None = None) -> Tensor:
        """One vector for each image, from its states."""
        return mean_state(states) if self.pooler is None else self.pooler(states)

    def classification_pool(self) -> Pool:
        return mean_state


def mean_state(states: Tensor, images: Any = None) -> Tensor:
    """The mean of all states: global average pooling."""
    return states.mean(1)


def first_state(states: Tensor, images: Any = None) -> Tensor:
    """The state of the first token, [CLS]."""
    return states[:, 0]


def flatten_cells(x: Tensor) -> Tensor:
    """(batch, width, rows, columns) → (batch, rows · columns, width)."""
    return x.flatten(2).mT


def pre_norm_stack(config: Any) -> Stack:
    """The Transformer encoder of ViT. Dosovitskiy et al. 2021, equations 2–4."""

    def block(drop_path: float) -> Block:
        return Block(
            lambda: StochasticDepth(nn.LayerNorm(config.width, config.epsilon), config.dropout, drop_path),
            multihead(config.width, config.heads, bias=config.qkv_bias, output_bias=True),
            FeedForward(config.width, config.feedforward or 4 * config.width, config.activation),
        )

    blocks = [block(rate) for rate in linear_rates(config.drop_path, config.depth)]
    return Stack(blocks, nn.LayerNorm(config.width, config.epsilon))


def check_image(config: ImageConfig, least: int, name: str) -> str | None:
    """The problem of an image that is smaller than one patch, as a message."""
    height, width = config.image_shape
    if min(height, width) < least:
        return f"image_size {height} × {width} is smaller than {name} {least}"
    return None
