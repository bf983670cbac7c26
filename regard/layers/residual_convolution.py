"""Residual stages of convolutions over images. He et al. 2016.

    x ─┬─▶ norm, relu, conv ─▶ norm, relu, conv ─┬─▶ +        He et al. 2016b: pre-activation
       └──────────── (1 × 1 conv) ───────────────┘

Norms are over groups of channels and kernels are standardised, so that an image never depends on others of its batch.
Wu & He 2018; Qiao et al. 2019.

Shapes: x (batch, channels, rows, columns).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 16  # channels that are normalised together


class StandardizedConvolution(nn.Conv2d):
    """A convolution without bias whose kernels have mean 0 and the variance of a new network. Qiao et al. 2019."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        flat = self.weight.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        scale = (centred.square().sum(1, keepdim=True) / 2 + 1e-6).rsqrt()  # He et al. 2015: variance 2 / inputs
        return self._conv_forward(input, (centred * scale).view_as(self.weight), None)


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(max(1, channels // GROUP), channels)


class ResidualBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))), with a projection of x where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.norm1 = group_norm(inputs)
        self.conv1 = StandardizedConvolution(inputs, outputs, 3, stride)
        self.norm2 = group_norm(outputs)
        self.conv2 = StandardizedConvolution(outputs, outputs, 3)
        changed = stride > 1 or inputs != outputs
        self.shortcut = StandardizedConvolution(inputs, outputs, 1, stride) if changed else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        return x + self.conv2(F.relu(self.norm2(self.conv1(y))))


class ResidualNetwork(nn.Module):
    """A first convolution, then stages of residual blocks; each stage after the first halves the resolution."""

    def __init__(self, channels: int, base_width: int, depths: Sequence[int], stem_stride: int):
        super().__init__()
        self.stem = StandardizedConvolution(channels, base_width, max(3, 2 * stem_stride - 1), stem_stride)
        blocks = []
        inputs = base_width
        for stage, depth in enumerate(depths):
            width = base_width * 2**stage
            for index in range(depth):
                blocks.append(ResidualBlock(inputs, width, 2 if stage and not index else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.norm = group_norm(inputs)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem(pixels.contiguous(memory_format=torch.channels_last))  # faster on a CPU
        return F.relu(self.norm(self.blocks(x)))
