"""Models that describe images in words: a vision encoder of any family, and a decoder of text."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.image_encoder import ImageEncoder
from regard.layers.inputs import ImageBatch
from regard.models import cnn, deit, hybrid, swin, vit

VISION_FAMILIES = ("vit", "deit", "swin", "hybrid", "cnn")

ENCODERS: dict[type, Callable[[Any], ImageEncoder]] = {
    vit.ViTConfig: vit.ViT,
    deit.DeiTConfig: deit.DeiT,
    swin.SwinConfig: swin.Swin,
    hybrid.HybridConfig: hybrid.Hybrid,
    cnn.CNNConfig: cnn.CNN,
}
"""The network of each config of a vision encoder."""


class ImageToText(AutoregressiveModel):
    """A decoder of text whose source is an image; its config has that of its `encoder`."""

    task = "caption"
    input_type = ImageBatch

    encoder: ImageEncoder

    @property
    def dummy_inputs(self) -> tuple:
        images = self.encoder.dummy_inputs[0]
        return images, torch.zeros(images.batch_size, 1, dtype=torch.long, device=images.pixels.device)

    def encode(self, inputs: ImageBatch) -> Tensor:
        """The state of each patch or cell, (batch, positions, width of the encoder)."""
        return self.encoder.encode(inputs)
