"""A hybrid of convolution and attention: early stages convolve, late ones attend. Dai et al. 2021 (CoAtNet), table 1.

    pixels ─▶ convolution ─▶ residual stages, each at half the resolution
           ─▶ cells + positions ─▶ [ norm ─▶ self-attention ─▶ norm ─▶ feed-forward ] × depth ─▶ norm ─▶ mean

Convolutions bring locality, which attention would have to learn from data. Xiao et al. 2021; Hassani et al. 2021 (CCT).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention.recording import scope
from regard.layers.blocks import ACTIVATIONS, init_weights
from regard.layers.dropout import Dropout
from regard.layers.image_encoder import (
    ImageConfig,
    ImageEncoder,
    SiteGeometry,
    check_image,
    flatten_cells,
    pre_norm_stack,
)
from regard.layers.inputs import ImageBatch
from regard.layers.patches import GridPositions
from regard.layers.residual_convolution import ResidualNetwork


@dataclass(frozen=True)
class HybridConfig(ImageConfig):
    image_size: int = 32
    stem_stride: int = 1  # of the first convolution: more for larger images
    base_width: int = 32  # channels of the first convolutional stage; each stage doubles it
    depths: tuple[int, ...] = (1, 1, 1)  # residual blocks of each convolutional stage
    width: int = 128  # of the attention blocks
    heads: int = 4
    depth: int = 4
    feedforward: int = 0  # 0: four times the width
    qkv_bias: bool = True
    activation: str = "gelu"
    epsilon: float = 1e-6
    dropout: float = 0.0
    drop_path: float = 0.0  # stochastic depth of the attention blocks: the rate of the last, rising linearly from 0

    CHOICES = {"activation": tuple(ACTIVATIONS)}

    @property
    def stride(self) -> int:
        """Pixels on a side of the cells that attend."""
        return self.stem_stride * 2 ** (len(self.depths) - 1)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}"
        return check_image(self, self.stride, "the stride of the convolutions,")


PRESETS: dict[str, dict] = {
    "tiny": dict(base_width=32, depths=(1, 1, 1), width=128, heads=4, depth=2, feedforward=256),  # 0.6M
    "small": dict(base_width=48, depths=(1, 2, 2), width=192, heads=6, depth=3, feedforward=384),  # 2.5M
    "photo": dict(image_size=224, stem_stride=2, base_width=48, depths=(1, 2, 2, 2), width=384, heads=6),  # 13.6M
}


class Hybrid(ImageEncoder):
    def __init__(self, config: HybridConfig):
        super().__init__()
        self.config = config
        self.convolutions = ResidualNetwork(config.channels, config.base_width, config.depths, config.stem_stride)
        self.projection = nn.Linear(config.base_width * 2 ** (len(config.depths) - 1), config.width)
        cells = self.state_geometry(*config.image_shape)
        self.positions = GridPositions(config.width, cells.rows, cells.columns)
        self.dropout = Dropout(config.dropout)
        self.encoder = pre_norm_stack(config)
        self.apply(init_weights)

    def encode(self, images: ImageBatch) -> Tensor:
        features = self.convolutions(images.pixels)
        cells = self.projection(flatten_cells(features)) + self.positions(*features.shape[2:])
        with scope("encoder"):
            return self.encoder(self.dropout(cells))[0]

    def state_geometry(self, height: int, width: int) -> SiteGeometry:
        stride = self.config.stride
        return SiteGeometry(-(-height // stride), -(-width // stride), stride)

    def geometry(self, height: int, width: int) -> Mapping[str, SiteGeometry]:
        """All attention blocks have the cells of the last convolutional stage."""
        site = self.state_geometry(height, width)
        return {f"encoder.blocks.{index}.self": site for index in range(self.config.depth)}
