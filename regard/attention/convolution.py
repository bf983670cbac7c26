"""Self-attention over the pixels of an image, which can equal any convolution. Cordonnier et al. 2020.

    score(q, k) = content − α ‖(k − q) − Δ‖²        q, k = pixels (row, column)
                                                    Δ = the centre of a head, α = its sharpness

With a large α, a head attends only to the pixel at offset Δ from its query. With one head per kernel position, the
output projection is the kernel (theorem 1).

Shapes, throughout:
    image     (batch, channels, rows, columns)
    x         (batch, pixels, channels)             pixels row by row
    centre    (heads, 2)                            row, column
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.attention.masks import Bias
from regard.errors import UserError

SHARPNESS = 128.0  # exp(−128) is 0 in float32, so that the weights are exactly one-hot


@dataclass(frozen=True, eq=False)
class Quadratic(Bias):
    """The quadratic relative encoding, −α ‖(k − q) − Δ‖², over an image with `columns` columns. Equation 9."""

    centre: Tensor
    sharpness: Tensor
    columns: int

    @property
    def heads(self) -> int:  # type: ignore[override]
        return len(self.centre)

    def rows(self, query: Tensor, key: Tensor) -> Tensor:
        down = (key // self.columns - query[:, None] // self.columns - self.centre[:, 0, None, None]) ** 2
        right = (key % self.columns - query[:, None] % self.columns - self.centre[:, 1, None, None]) ** 2
        return (-self.sharpness[:, None, None] * (down + right))[None]

    def rows_of(self, texts: slice, heads: slice, query: Tensor, key: Tensor) -> Tensor:
        return Quadratic(self.centre[heads], self.sharpness[heads], self.columns).rows(query, key)


class QuadraticAttention(nn.Module):
    """Multi-head self-attention over an image of any size, with a learned centre and sharpness for each head."""

    def __init__(self, attention: Attention, centre: Tensor, sharpness: Tensor):
        super().__init__()
        self.attention = attention
        self.centre = nn.Parameter(centre)
        self.sharpness = nn.Parameter(sharpness)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(2).mT
        bias = Quadratic(self.centre, self.sharpness, image.size(-1))
        x = self.attention(x, self.attention.remember(x), bias=bias)
        return x.mT.unflatten(2, image.shape[2:])


@torch.no_grad()
def attention_from_convolution(convolution: nn.Conv2d, sharpness: float = SHARPNESS) -> nn.Sequential:
    """Self-attention that computes the same as a convolution of stride 1 and odd kernel: pads, attends, crops.

    Queries and keys are 0, so that scores depend on positions only; values are pixels; the kernel projects the output.
    """
    _check(convolution)
    weight = _dense(convolution)  # (outputs, inputs, kernel rows, kernel columns)
    outputs, inputs, *kernel = weight.shape
    reach = [dilation * (size // 2) for size, dilation in zip(kernel, convolution.dilation, strict=True)]
    padding = reach if convolution.padding == "same" else [int(size) for size in convolution.padding]
    offsets = [torch.linspace(-far, far, size) for far, size in zip(reach, kernel, strict=True)]
    centre = torch.cartesian_prod(*offsets).to(weight)
    heads = len(centre)
    query, key, value = (nn.Linear(inputs, heads * inputs, bias=False) for _ in range(3))
    output = nn.Linear(heads * inputs, outputs, bias=convolution.bias is not None)
    attention = Attention(query, key, value, output, heads=heads).to(weight)
    query.weight.zero_()
    key.weight.zero_()
    value.weight.copy_(torch.eye(inputs).repeat(heads, 1))
    output.weight.copy_(weight.flatten(2).transpose(1, 2).flatten(1))
    if convolution.bias is not None:
        output.bias.copy_(convolution.bias)
    layer = QuadraticAttention(attention, centre, torch.full_like(centre[:, 0], sharpness))
    return nn.Sequential(_pad(padding), layer, _pad([-size for size in reach]))


def _check(convolution: nn.Conv2d) -> None:
    """Only what one attention layer can be."""
    if set(convolution.stride) != {1}:
        raise UserError(f"attention gives an output for every pixel: stride must be 1, not {convolution.stride}")
    if any(size % 2 == 0 for size in convolution.kernel_size):
        raise UserError(f"a head's centre is a pixel: kernel_size must be odd, not {convolution.kernel_size}")
    if convolution.padding_mode != "zeros":
        raise UserError(f"padding_mode must be 'zeros', not '{convolution.padding_mode}'")


def _dense(convolution: nn.Conv2d) -> Tensor:
    """The weights with zeros between channels of different groups."""
    groups = convolution.weight.chunk(convolution.groups)
    inputs = convolution.in_channels // convolution.groups
    weight = convolution.weight.new_zeros(convolution.out_channels, convolution.in_channels, *convolution.kernel_size)
    outputs = len(groups[0])
    for index, group in enumerate(groups):
        weight[index * outputs : (index + 1) * outputs, index * inputs : (index + 1) * inputs] = group
    return weight


def _pad(size: list[int]) -> nn.ZeroPad2d:
    """The same on both sides; a negative size crops."""
    rows, columns = size
    return nn.ZeroPad2d((columns, columns, rows, rows))
