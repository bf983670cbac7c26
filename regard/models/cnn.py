"""A residual network of convolutions, without attention: the baseline of image models. He et al. 2016.

pixels ─▶ convolution ─▶ [ residual block × depth, half the resolution, twice the width ] × stages ─▶ norm ─▶ mean
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from regard.layers.image_encoder import ImageConfig, ImageEncoder, SiteGeometry, check_image, flatten_cells
from regard.layers.inputs import ImageBatch
from regard.layers.residual_convolution import ResidualNetwork


@dataclass(frozen=True)
class CNNConfig(ImageConfig):
    image_size: int = 32
    stem_stride: int = 1  # of the first convolution: more for larger images
    base_width: int = 32  # channels of the first stage
    depths: tuple[int, ...] = (2, 2, 2)  # residual blocks of each stage
    dropout: float = 0.0  # before the classification head

    CHOICES = {}

    @property
    def width(self) -> int:
        """Channels of the last stage."""
        return self.base_width * 2 ** (len(self.depths) - 1)

    @property
    def stride(self) -> int:
        """Pixels between cells of the last stage."""
        return self.stem_stride * 2 ** (len(self.depths) - 1)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        return check_image(self, self.stride, "the stride of the last stage,")


PRESETS: dict[str, dict] = {
    "tiny": dict(base_width=32, depths=(1, 1, 1)),  # 0.3M
    "small": dict(base_width=48, depths=(2, 2, 2)),  # 1.5M
    "medium": dict(base_width=64, depths=(3, 3, 3)),  # 4.3M
    "photo": dict(image_size=224, stem_stride=4, base_width=64, depths=(2, 2, 2, 2)),  # 11.2M: as ResNet-18
}


class CNN(ImageEncoder):
    def __init__(self, config: CNNConfig):
        super().__init__()
        self.config = config
        self.convolutions = ResidualNetwork(config.channels, config.base_width, config.depths, config.stem_stride)

    def encode(self, images: ImageBatch) -> Tensor:
        return flatten_cells(self.convolutions(images.pixels))

    def state_geometry(self, height: int, width: int) -> SiteGeometry:
        stride = self.config.stride
        return SiteGeometry(-(-height // stride), -(-width // stride), stride)

    def geometry(self, height: int, width: int) -> Mapping[str, SiteGeometry]:
        """There is no attention."""
        return {}
