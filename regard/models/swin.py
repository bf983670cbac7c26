"""Swin: attention within windows, which shift from block to block, over a pyramid of resolutions. Liu et al. 2021.

    patches ─▶ norm ─▶ [ blocks ─▶ patch merging ] × stages ─▶ norm ─▶ mean

    block      windows ─▶ attention ─▶ feed-forward                  equation 3: every second block shifts its windows
    merging    2 × 2 cells ─▶ norm ─▶ one cell of twice the width    section 3.1

Shapes: x (batch, rows, columns, width).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.recording import scope
from regard.attention.variants import multihead
from regard.attention.windows2d import RelativePositionBias, Windows
from regard.layers.blocks import ACTIVATIONS, Block, FeedForward, PreNorm, StochasticDepth, init_weights, linear_rates
from regard.layers.dropout import Dropout
from regard.layers.image_encoder import ImageConfig, ImageEncoder, SiteGeometry, check_image
from regard.layers.inputs import ImageBatch
from regard.layers.patches import GridPositions, PatchProjection


@dataclass(frozen=True)
class SwinConfig(ImageConfig):
    patch: int = 4  # pixels on a side of a patch
    embedding_width: int = 96  # of the first stage; each stage doubles it
    depths: tuple[int, ...] = (2, 2, 6, 2)  # blocks of each stage
    heads: tuple[int, ...] = (3, 6, 12, 24)  # of each stage
    window: int = 7  # cells on a side of a window
    feedforward_ratio: float = 4.0  # the width of the feed-forward network, in widths of its stage
    qkv_bias: bool = True
    absolute_positions: bool = False  # learned positions of patches, besides the relative ones
    activation: str = "gelu"
    epsilon: float = 1e-5
    dropout: float = 0.0
    drop_path: float = 0.0  # stochastic depth: the rate of the last block, rising linearly from 0

    CHOICES = {"activation": tuple(ACTIVATIONS)}

    @property
    def widths(self) -> list[int]:
        """The width of each stage."""
        return [self.embedding_width * 2**stage for stage in range(len(self.depths))]

    @property
    def width(self) -> int:
        """The width of the last stage."""
        return self.widths[-1]

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if len(self.depths) != len(self.heads):
            return f"depths has {len(self.depths)} stages, but heads {len(self.heads)}"
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                return f"width {width} of a stage is not a multiple of its heads {heads}"
        if int(self.feedforward_ratio * self.embedding_width) < 1:
            return f"feedforward_ratio {self.feedforward_ratio} leaves no hidden units"
        return check_image(self, self.patch, "patch")


def _swin(embedding_width: int, depths: tuple[int, ...], heads: tuple[int, ...], **fields: object) -> dict:
    return dict(embedding_width=embedding_width, depths=depths, heads=heads, **fields)


PRESETS: dict[str, dict] = {
    "tiny": _swin(48, (2, 4, 2), (2, 4, 8), image_size=32, patch=2, window=4),  # 1.5M: for small images, from scratch
    "tiny-224": _swin(96, (2, 2, 6, 2), (3, 6, 12, 24)),  # 28.3M with 1,000 classes, as all below: Swin-T
    "small-224": _swin(96, (2, 2, 18, 2), (3, 6, 12, 24)),  # 49.6M
    "base-224": _swin(128, (2, 2, 18, 2), (4, 8, 16, 32)),  # 87.8M
    "large-224": _swin(192, (2, 2, 18, 2), (6, 12, 24, 48)),  # 196.5M
}


class SwinEmbedding(nn.Module):
    """Normalised projections of patches; images are padded with zeros to full patches."""

    def __init__(self, config: SwinConfig):
        super().__init__()
        width = config.embedding_width
        self.projection = PatchProjection(config.channels, width, config.patch)
        self.norm = nn.LayerNorm(width)
        height, wide = (size // config.patch for size in config.image_shape)
        self.positions = GridPositions(width, height, wide) if config.absolute_positions else None
        self.dropout = Dropout(config.dropout)
        self.patch = config.patch

    def forward(self, pixels: Tensor) -> Tensor:
        padded = F.pad(pixels, (0, -pixels.size(3) % self.patch, 0, -pixels.size(2) % self.patch))
        x = self.norm(self.projection(padded).permute(0, 2, 3, 1))
        if self.positions is not None:
            x = x + self.positions(*x.shape[1:3]).view(x.shape[1:])
        return self.dropout(x)


class SwinBlock(Block):
    """A block whose self-attention is within windows."""

    def __init__(self, config: SwinConfig, width: int, heads: int, shift: int, residual: Callable[[], PreNorm]):
        position_bias = RelativePositionBias(heads, config.window)
        attention = multihead(width, heads, bias=config.qkv_bias, output_bias=True, position_bias=position_bias)
        super().__init__(
            residual, attention, FeedForward(width, int(config.feedforward_ratio * width), config.activation)
        )
        self.window = config.window
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        _, rows, columns, _ = x.shape
        windows = Windows.over(rows, columns, self.window, self.shift)
        with scope("self", windows.view):
            inside = windows.partition(self.self_attention_residual.before(x))
            y, _ = self.self_attention.self_attend(inside, windows.rule(len(x), x.device))
        x = self.self_attention_residual.after(x, windows.merge(y, rows, columns))
        return self.feedforward_residual.after(x, self.feedforward(self.feedforward_residual.before(x)))


class PatchMerging(nn.Module):
    """Four neighbours become one cell of twice the width; odd grids are padded with zeros."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, x.size(2) % 2, 0, x.size(1) % 2))
        neighbours = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.reduction(self.norm(torch.cat(neighbours, -1)))


class SwinStage(nn.Module):
    """Blocks at one resolution, then patch merging."""

    def __init__(self, config: SwinConfig, stage: int, rates: list[float]):
        super().__init__()
        width = config.widths[stage]

        def block(index: int, rate: float) -> SwinBlock:
            shift = index % 2 * (config.window // 2)
            residual = lambda: StochasticDepth(nn.LayerNorm(width, config.epsilon), config.dropout, rate)  # noqa: E731
            return SwinBlock(config, width, config.heads[stage], shift, residual)

        self.blocks = nn.ModuleList(block(index, rate) for index, rate in enumerate(rates))
        self.merging = PatchMerging(width) if stage < len(config.depths) - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            with scope(f"blocks.{index}"):
                x = block(x)
        return x if self.merging is None else self.merging(x)


class Swin(ImageEncoder):
    def __init__(self, config: SwinConfig):
        super().__init__()
        self.config = config
        self.embed = SwinEmbedding(config)
        rates = iter(linear_rates(config.drop_path, sum(config.depths)))
        self.stages = nn.ModuleList(
            SwinStage(config, stage, [next(rates) for _ in range(depth)]) for stage, depth in enumerate(config.depths)
        )
        self.norm = nn.LayerNorm(config.width, config.epsilon)
        self.apply(init_weights)
        self.embed.projection.init()

    def encode(self, images: ImageBatch) -> Tensor:
        x = self.embed(images.pixels)
        for index, stage in enumerate(self.stages):
            with scope(f"encoder.stages.{index}"):
                x = stage(x)
        return self.norm(x).flatten(1, 2)

    def state_geometry(self, height: int, width: int) -> SiteGeometry:
        cell = self.config.patch * 2 ** (len(self.config.depths) - 1)
        return SiteGeometry(-(-height // cell), -(-width // cell), cell)

    def geometry(self, height: int, width: int) -> Mapping[str, SiteGeometry]:
        """The cells of each stage, with those that pad the grid to full windows."""
        sites = {}
        for stage, depth in enumerate(self.config.depths):
            cell = self.config.patch * 2**stage
            for block in range(depth):
                windows = Windows.over(-(-height // cell), -(-width // cell), self.config.window, 0)
                sites[f"encoder.stages.{stage}.blocks.{block}.self"] = SiteGeometry(windows.rows, windows.columns, cell)
        return sites
