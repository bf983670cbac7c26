"""Products with weights, rewritten for speed on a CPU: the same numbers in another order, or in eight bits.

A step over one token reads every weight once, so its time is that of the memory. Stored the other way round, float32
weights stream at 24 instead of 22 GB/s; in eight bits there is a quarter of them to read.
"""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError

_static = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
_dynamic = torch.ops.quantized.linear_dynamic.default
LEAST = 1 << 12  # weights: smaller products are left as they are


def turn(linear: nn.Linear) -> None:
    """Store a weight by columns. It stays the same parameter, of the same shape, for whoever trains or saves it."""
    linear.weight.data = linear.weight.data.t().contiguous().t()


class Head(nn.Module):
    """The output of a network whose embedding has the same weights: there rows are looked up, here columns are read."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.columns = [linear.weight.detach().t().contiguous()]  # in a list, so that nobody saves or moves it

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.columns[0].t(), self.bias)


class Int8(nn.Module):
    """A product with weights of eight bits, a scale for each output, whose inputs are rounded to eight bits too.

    Each row of the input is rounded between its own smallest and largest number. torch's kernel takes those of the
    whole batch, which costs a language model a tenth of its perplexity, and more with every outlier.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-30).double()
        with warnings.catch_warnings():  # torch means to move these to another package one day
            warnings.simplefilter("ignore", UserWarning)
            zero = torch.zeros(len(scale), dtype=torch.int64)
            rounded = torch.quantize_per_channel(weight.float().contiguous(), scale, zero, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach().float())
        self.sums = rounded.int_repr().sum(1).mul(scale).float()  # of each output's weights
        self.bias = None if bias is None else bias.detach().float()
        self.in_features, self.out_features = weight.size(1), weight.size(0)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == x.size(-1):  # one row: torch's own way is the same
            return _dynamic(x, self.packed, LEVELS < 255)
        low, high = x.aminmax(dim=-1, keepdim=True)
        width = (high - low).clamp_(min=1e-30)
        y = _static((x - low).div_(width), 1 / LEVELS, 0, self.packed).mul_(width).addcmul_(low, self.sums)
        return y if self.bias is None else y.addcmul_(1 - width, self.bias)


def _has_vnni() -> bool:
    """Whether products of bytes are summed in 32 bits; elsewhere inputs must do with seven, or 16 bits overflow."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())


LEVELS = 255 if _has_vnni() else 127


def require_int8() -> None:
    """Refuse eight bits where this build of torch has no kernels for them."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        engines = ", ".join(torch.backends.quantized.supported_engines)
        raise UserError(
            f"precision = 'int8' needs torch's fbgemm kernels, which this build lacks (it has: {engines}); "
            "possible here: float32, bfloat16"
        )
    torch.backends.quantized.engine = "fbgemm"
