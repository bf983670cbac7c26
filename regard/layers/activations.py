"""What bends: activations by name."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SMALL = 1 << 13  # numbers: of fewer, one kernel is faster than four
SLOPE = 2 * math.sqrt(2 / math.pi)
BEND = 0.044715 * SLOPE


class GeluTanh(nn.GELU):
    """GELU as GPT-2 computes it (Hendrycks & Gimpel 2016, section 2): x/2 · (1 + tanh(u/2)), which is x · sigmoid(u).

    u = 2√(2/π) · (x + 0.044715 x³). On a CPU the sigmoid takes a third of the tanh's time; it is kept for the way back,
    which can be gone once.
    """

    def __init__(self) -> None:
        super().__init__("tanh")

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or x.numel() < SMALL:
            return F.gelu(x, approximate="tanh")
        return _GeluTanh.apply(x)  # pyright: ignore[reportReturnType]


class _GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        passed = _cubic(x, BEND).sigmoid_()
        ctx.save_for_backward(x, passed)
        return x * passed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """d(x · s) = s + x · s (1 − s) · du."""
        x, passed = ctx.saved_tensors
        slope = torch.addcmul(passed, passed, passed, value=-1)
        return _cubic(x, 3 * BEND).mul_(slope).add_(passed).mul_(gradient)


def _cubic(x: Tensor, bend: float) -> Tensor:
    return torch.addcmul(x.new_tensor(SLOPE), x, x, value=bend).mul_(x)


ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": GeluTanh(),
    "swish": nn.SiLU(),
    "tanh": nn.Tanh(),
}
