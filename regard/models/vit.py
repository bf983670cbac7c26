"""ViT: a Transformer encoder over the patches of an image. Dosovitskiy et al. 2021.

[CLS], patches + positions ─▶ [ norm ─▶ self-attention ─▶ norm ─▶ feed-forward ] × depth ─▶ norm ─▶ state of [CLS]
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from regard.attention.recording import scope
from regard.layers.blocks import ACTIVATIONS, init_weights
from regard.layers.encoder import Pool, Pooler
from regard.layers.image_encoder import (
    ImageConfig,
    ImageEncoder,
    SiteGeometry,
    check_image,
    first_state,
    pre_norm_stack,
)
from regard.layers.inputs import ImageBatch
from regard.layers.patches import PatchEmbedding


@dataclass(frozen=True)
class ViTConfig(ImageConfig):
    patch: int = 16  # pixels on a side of a patch
    width: int = 768
    heads: int = 12
    depth: int = 12
    feedforward: int = 0  # 0: four times the width
    qkv_bias: bool = True
    pooler: bool = False  # a dense layer over the state of [CLS]; classifiers do without
    activation: str = "gelu"
    pooler_activation: str = "tanh"
    epsilon: float = 1e-6
    dropout: float = 0.0
    drop_path: float = 0.0  # stochastic depth: the rate of the last block, rising linearly from 0

    CHOICES = {"activation": tuple(ACTIVATIONS), "pooler_activation": tuple(ACTIVATIONS)}

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}"
        return check_image(self, self.patch, "patch")


def _vit(width: int, depth: int, heads: int, patch: int = 16, image_size: int = 224, **fields: object) -> dict:
    return dict(width=width, depth=depth, heads=heads, patch=patch, image_size=image_size, **fields)


PRESETS: dict[str, dict] = {
    "tiny": _vit(192, 6, 3, patch=4, image_size=32, feedforward=384),  # 1.8M: for small images, from scratch
    "base-16": _vit(768, 12, 12),  # 86.6M with 1,000 classes, as all below
    "large-16": _vit(1024, 24, 16),  # 304.3M
    "huge-14": _vit(1280, 32, 16, patch=14),  # 632.0M
    "deit-tiny-16": _vit(192, 12, 3),  # 5.7M: DeiT without distillation, Touvron et al. 2021, as all below
    "deit-small-16": _vit(384, 12, 6),  # 22.1M
    "deit-base-16": _vit(768, 12, 12),  # 86.6M
}


class ViT(ImageEncoder):
    tokens = ("cls",)

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        self.embed = PatchEmbedding(config, config.patch, config.width, config.dropout, self.tokens)
        self.encoder = pre_norm_stack(config)
        self.pooler = Pooler(config.width, config.pooler_activation) if config.pooler else None
        self.apply(init_weights)
        self.embed.init()

    def encode(self, images: ImageBatch) -> Tensor:
        with scope("encoder"):
            return self.encoder(self.embed(images.pixels))[0]

    def state_geometry(self, height: int, width: int) -> SiteGeometry:
        patch = self.config.patch
        return SiteGeometry(height // patch, width // patch, patch, tuple(f"[{name.upper()}]" for name in self.tokens))

    def geometry(self, height: int, width: int) -> Mapping[str, SiteGeometry]:
        """All blocks have the patches and tokens of the input."""
        site = self.state_geometry(height, width)
        return {f"encoder.blocks.{index}.self": site for index in range(self.config.depth)}

    def pooled(self, states: Tensor, images: ImageBatch | None = None) -> Tensor:
        """The pooler's vector; without a pooler the state of [CLS]."""
        return first_state(states) if self.pooler is None else self.pooler(states)

    def classification_pool(self) -> Pool:
        """The state of [CLS]; a pooler is dropped, since the head is one linear layer. Section 3.1."""
        self.unpooled()
        return first_state
