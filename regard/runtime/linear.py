"""Products with weights, rewritten for speed on a CPU: the same numbers in another order, or in eight bits.

A step over one token reads every weight once, so its time is that of the memory; in eight bits there is a quarter of
them to read. Many rows are limited by the processor instead.
"""

import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.kernels import bindings as kernels

_static = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

_many = torch.ops.onednn.qlinear_pointwise.default

MIDDLE = 128  # the byte that stands for zero, where numbers may be on either side

LEAST = 1 << 12  # weights: smaller products are left as they are

SLICE = 1 << 12  # outputs, whose bytes are made numbers at a time


class Few(nn.Linear):
    """A product whose weights are read as they are: for a few rows by our kernels, else by torch's."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, input: Tensor) -> Tensor:
        return few(input, self.weight, self.bias)


def few(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias."""
    if kernels.few(x) and x.size(-1) == weight.size(1) and kernels.usable(weight):
        return kernels.multiplied(x, kernels.product(weight, bias))
    return F.linear(x, weight, bias)


class PackedLinear(Few):
    """A product for many rows, whose weights are kept a second time as the kernels read them."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.laid = PackedWeights([self])

    def forward(self, input: Tensor) -> Tensor:
        return self.laid(input)


class PackedWeights:
    """The weights of some products of one input in panels, laid out anew when they have changed.

    That is seen where a parameter is changed or another takes its place, not where somebody writes into its `.data`.
    """

    def __init__(self, parts: list[nn.Linear]):
        self.parts = parts
        self.outputs = sum(part.out_features for part in parts)
        self.seen: list[tuple[int, int]] = []
        self.kept: list[Tensor] = []  # what was laid out, so that nothing else can come to lie in its place

    def __call__(self, x: Tensor, add: Tensor | None = None, bend: int = 0) -> Tensor:
        """bend(x · weightᵀ + bias + add); who wants gradients or another precision adds and bends by himself."""
        first = self.parts[0].weight
        if not kernels.plain(x) or x.size(-1) != first.size(1) or first.dtype != x.dtype or first.device != x.device:
            assert add is None and not bend
            return torch.cat([F.linear(x, part.weight, part.bias) for part in self.parts], -1)
        panels, bias = self._current()
        return kernels.through_panels(x, panels, bias, self.outputs, add, bend)

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "outputs": self.outputs, "seen": [], "kept": []}  # a copy lays out its own

    def _current(self) -> tuple[Tensor, Tensor]:
        parameters = [each for part in self.parts for each in (part.weight, part.bias) if each is not None]
        now = [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in parameters]
        if self.seen != now:
            whole = torch.cat([part.weight.detach() for part in self.parts])
            biases = [part.bias for part in self.parts if part.bias is not None]
            self.panels = kernels.panels_of(whole), kernels.full_bias(whole, self.outputs, biases)
            self.seen, self.kept = now, [each.detach() for each in parameters]
        return self.panels


def store_column_major(linear: nn.Linear) -> None:
    """Store a weight by columns, as torch's kernels for many rows read it a little faster.

    It stays the same parameter, of the same shape, for whoever trains or saves it.
    """
    linear.weight.data = linear.weight.data.t().contiguous().t()


class WeightOnlyInt8Linear(nn.Module):
    """A product with weights of eight bits, each output's with a scale of their own.

    Inputs stay as they are: our kernels read bytes for a few rows, for many they are made numbers. Without them torch
    multiplies bytes by bytes, each row of inputs rounded between its own smallest and largest number. torch's own way
    is to round all rows alike, which costs a language model a tenth of its perplexity, and more with every outlier.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        weight = weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-30)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self.in_features, self.out_features = weight.size(1), weight.size(0)
        rounded = weight.div(scale[:, None]).round_().to(torch.int8)
        if kernels.built():
            self.laid = kernels.laid_bytes(rounded)
            self.scale = F.pad(scale, (0, len(self.laid) - len(scale)))
            return
        _hush()
        zero = torch.zeros(len(scale), dtype=torch.int64)
        whole = torch.quantize_per_channel(weight.contiguous(), scale.double(), zero, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(whole, self.bias)
        self.sums = rounded.sum(1).mul(scale).float()  # of each output's weights

    def forward(self, x: Tensor) -> Tensor:
        if x.size(-1) != self.in_features:
            raise RuntimeError(f"inputs have {x.size(-1)} numbers, the weights {self.in_features}")
        if kernels.built():
            if x.device.type != "cpu":
                raise RuntimeError(f"weights of eight bits are on the CPU, inputs on {x.device.type}")
            rows = x.float().reshape(-1, self.in_features)
            few = rows.numel() <= min(kernels.FEW * self.in_features, kernels.ROOM)
            y = kernels.multiplied(rows, self.product) if few else self._multiplied(rows)
            return y.view(*x.shape[:-1], self.out_features)
        low, high = x.aminmax(dim=-1, keepdim=True)
        width = (high - low).clamp_(min=1e-30)
        y = _static((x - low).div_(width), 1 / LEVELS, 0, self.packed).mul_(width).addcmul_(low, self.sums)
        return y if self.bias is None else y.addcmul_(1 - width, self.bias)

    def _multiplied(self, rows: Tensor) -> Tensor:
        """Of many rows: a slice of the weights at a time is made numbers again, which takes less time than they do."""
        size, found = SLICE // kernels.LANES * kernels.LANES, []
        for start in range(0, self.out_features, size):
            end = min(start + size, self.out_features)
            weight = kernels.laid_back(self.laid[start : start + size])[: end - start, : self.in_features]
            weight = weight.float().mul_(self.scale[start:end, None])
            found.append(F.linear(rows, weight, None if self.bias is None else self.bias[start:end]))
        return torch.cat(found, -1)

    @property
    def product(self) -> kernels.Product:
        """Where our kernels find it."""
        return kernels.byte_product(self.laid, self.scale, self.bias, (self.out_features, self.in_features))


class DynamicInt8Linear(nn.Module):
    """A product with weights of eight bits for many rows, by oneDNN.

    Each row of inputs is rounded by its own largest number, each output's weights by theirs, so that what else stands
    in a batch changes nothing. Where inputs are known never to be under `low`, no byte is spent on what is. Where two
    products must fit into 16 bits, weights lose a bit, not inputs: few of these are as large as the largest.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, low: float | None = None):
        super().__init__()
        _hush()
        weight = weight.detach().float()
        self.in_features, self.out_features, self.low = weight.size(1), weight.size(0), low
        self.scale = (weight.abs().amax(1) / WEIGHTS).clamp(min=1e-30)
        rounded = weight.div(self.scale[:, None]).round_()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self.bias = torch.zeros(self.out_features) if bias is None else bias.detach().float()
        self.bias = self.bias + (low or 0.0) * rounded.sum(1) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        high = rows.amax(1, keepdim=True)
        if self.low is None:
            step, zero = torch.maximum(high, rows.amin(1, keepdim=True).neg_()).clamp_(min=1e-30).div_(127), MIDDLE
            rounded = bytes_of(rows * step.reciprocal(), zero)
        else:
            step, zero = high.sub_(self.low).clamp_(min=1e-30).div_(255), 0
            finer = step.reciprocal()
            rounded = bytes_of(torch.addcmul(finer * -self.low, rows, finer), zero)
        weights = self.packed, self.scale, self.zeros
        y = _many(rounded, 1.0, zero, *weights, None, 1.0, 0, torch.float32, "none", [], "")
        return torch.addcmul(self.bias, y, step, out=y).view(*x.shape[:-1], -1)


def bytes_of(x: Tensor, zero: int) -> Tensor:
    """Numbers rounded to bytes, of which one stands for zero."""
    rounded = torch.quantize_per_tensor(x, 1.0, zero, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(rounded.untyped_storage(), 0, x.shape, x.stride())


@cache
def _hush() -> None:
    """torch says once, of tensors of bytes, that it means to move them to another package one day: here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        bytes_of(torch.zeros(1), 0)


def _has_vnni() -> bool:
    """Whether products of bytes are summed in 32 bits; elsewhere one side must do with seven, or 16 bits overflow."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())


LEVELS = 255 if _has_vnni() else 127  # of inputs by fbgemm, whose weights have eight bits

WEIGHTS = 127 if _has_vnni() else 63  # on either side of zero, by oneDNN, whose inputs have eight bits


def require_int8() -> None:
    """Refuse eight bits where there are no kernels for them, neither ours nor torch's."""
    if kernels.built():
        return
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        engines = ", ".join(torch.backends.quantized.supported_engines)
        raise UserError(
            "precision = 'int8' needs regard's own kernels (install a C compiler, then regard anew) or torch's fbgemm, "
            f"which this build lacks (it has: {engines}); "
            "possible here: float32, bfloat16"
        )
    torch.backends.quantized.engine = "fbgemm"
