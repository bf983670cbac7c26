"""Linear layers for inference on a CPU: the same numbers in another memory order, or int8 weights.

A step over one token reads every weight once, so its time is that of the memory; int8 weights are a quarter of it. Many
rows are limited by arithmetic instead.

Shapes: x (…, inputs), weight (outputs, inputs).
"""

import os
import warnings
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.errors import UserError
from regard.kernels import onednn, ops
from regard.kernels.amx import VARIABLES
from regard.kernels.bindings import Linear

_fbgemm_linear = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

_onednn_linear = torch.ops.onednn.qlinear_pointwise.default

INT8_ZERO = 128  # the byte that represents zero, where inputs may have either sign

MIN_WEIGHTS = 1 << 12  # smaller layers are left as they are

DEQUANTIZED_OUTPUTS = 1 << 12  # int8 outputs that are converted to float32 at a time

WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")  # limits that a user may have set for oneDNN


class SmallBatchLinear(nn.Linear):
    """A linear layer that uses our kernels for a few rows, else torch's."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, input: Tensor) -> Tensor:
        return ops.linear(input, self.weight, self.bias)


class OneDNNLinear(nn.Linear):
    """A linear layer by oneDNN, with or without gradients, for inputs of few different sizes."""

    def forward(self, input: Tensor) -> Tensor:
        fits = input.size(-1) == self.in_features and onednn.supports(input, self.weight)
        return onednn.linear(input, self.weight, self.bias) if fits else super().forward(input)


class PackedLinear(SmallBatchLinear):
    """A linear layer for many rows that keeps a second, packed copy of its weights."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.packed = PackedWeights([self])

    def forward(self, input: Tensor) -> Tensor:
        return self.packed(input)


class PackedWeights:
    """The weights of several linear layers of one input, packed as one matrix, and again when they have changed.

    A change is noticed where a parameter is modified or replaced, not where its `.data` is written to.
    """

    def __init__(self, layers: list[nn.Linear]):
        self.layers = layers
        self.outputs = sum(layer.out_features for layer in layers)
        self.versions: list[tuple[int, int]] = []
        self.sources: list[Tensor] = []  # what was packed, kept so that no other tensor can take its address

    def __call__(self, x: Tensor, residual: Tensor | None = None, activation: int = 0) -> Tensor:
        """activation(x · weightᵀ + bias + residual); with gradients or in another precision neither may be given."""
        first = self.layers[0].weight
        if not ops.is_inference(x) or x.size(-1) != first.size(1) or first.dtype != x.dtype or first.device != x.device:
            assert residual is None and not activation
            return torch.cat([F.linear(x, layer.weight, layer.bias) for layer in self.layers], -1)
        self._refresh()
        return ops.gemm_packed(x, self.packed, self.bias, self.outputs, residual, activation)

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self.layers, "outputs": self.outputs, "versions": [], "sources": []}  # a copy packs its own

    def _refresh(self) -> None:
        biases = [layer.bias for layer in self.layers if layer.bias is not None]
        parameters = [*[layer.weight for layer in self.layers], *biases]
        versions = [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in parameters]
        if self.versions != versions:
            weight = torch.cat([layer.weight.detach() for layer in self.layers])
            bias = concatenated_bias(self.layers)
            self.packed, self.bias = ops.pack_weights(weight, bias)
            self.versions = versions
            self.sources = [each.detach() for each in parameters]


def packable(attention: Attention) -> list[nn.Linear]:
    """The three projections, where they are plain linear layers of one input; else none. Some may have no bias."""
    layers = [attention.query, attention.key, attention.value]
    if not all(type(layer) is nn.Linear for layer in layers):
        return []
    linears = cast(list[nn.Linear], layers)
    kinds = {(layer.in_features, layer.weight.device) for layer in linears}
    distinct = len({id(layer.weight) for layer in linears}) == len(linears)
    return linears if len(kinds) == 1 and distinct else []


class PackedQKV:
    """Queries, keys and values of the same x by one matrix product, with its weights by rows or by columns.

    The weights become views of one tensor, and stay the parameters that they were for saving and training: with
    gradients, each is multiplied by itself. Not a module, so that no parameter is listed twice.
    """

    def __init__(self, layers: list[nn.Linear], row_major: bool = True):
        self.layers = layers
        self.row_major = row_major
        self.weight = _concatenate([layer.weight for layer in layers], row_major)
        self.bias = concatenated_bias(layers)
        if self.bias is not None:
            _share(self.bias, [layer.bias for layer in layers], [layer.out_features for layer in layers])

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.is_current:
            return torch.cat([layer(x) for layer in self.layers], -1)
        return ops.linear(x, self.weight, self.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedQKV":
        return PackedQKV(deepcopy(self.layers, memo), self.row_major)  # copied parameters are separate until then

    @property
    def is_current(self) -> bool:
        """Whether the parameters still are views of the one tensor: they may have been replaced."""
        sizes = [layer.out_features for layer in self.layers]
        biases = self.bias is None or _are_views(self.bias, [layer.bias for layer in self.layers], sizes)
        return biases and _are_views(self.weight, [layer.weight for layer in self.layers], sizes)


def concatenated_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    """The biases of several layers as one, zeros for one without; None where all are."""
    if all(layer.bias is None for layer in layers):
        return None
    missing = [layer.weight.new_zeros(layer.out_features) for layer in layers]
    biases = [zeros if layer.bias is None else layer.bias for layer, zeros in zip(layers, missing, strict=True)]
    return torch.cat([bias.detach() for bias in biases])


def _are_views(concatenated: Tensor, parameters: Sequence[Tensor | None], sizes: Sequence[int]) -> bool:
    """Whether the parameters are views of one tensor; sizes are also of those that are missing."""
    address = concatenated.data_ptr()
    for parameter, size in zip(parameters, sizes, strict=True):
        if parameter is not None and parameter.data_ptr() != address:
            return False
        address += size * concatenated.stride(0) * concatenated.element_size()
    return True


def _share(concatenated: Tensor, parameters: Sequence[Tensor | None], sizes: Sequence[int]) -> None:
    """Make the parameters' data views of the one tensor."""
    for parameter, view in zip(parameters, concatenated.split(list(sizes)), strict=True):
        if parameter is not None:
            parameter.data = view


def _concatenate(parameters: Sequence[Tensor], row_major: bool) -> Tensor:
    """One tensor, of which the parameters' data become views."""
    concatenated = torch.cat([parameter.detach() for parameter in parameters])
    if not row_major:
        concatenated = concatenated.t().contiguous().t()
    _share(concatenated, parameters, [len(parameter) for parameter in parameters])
    return concatenated


def store_column_major(linear: nn.Linear) -> None:
    """Store a weight by columns, as torch's kernels for many rows read it a little faster.

    It stays the same parameter, of the same shape, for training and saving.
    """
    linear.weight.data = linear.weight.data.t().contiguous().t()


class WeightOnlyInt8Linear(nn.Module):
    """A linear layer with int8 weights and a scale for each output, by our kernels; inputs stay float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        weight = weight.detach().float()
        scale, quantized = quantize_weight(weight, 127)
        self.in_features = weight.size(1)
        self.out_features = weight.size(0)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self.packed = ops.pack_int8(quantized.to(torch.int8))
        self.scale = F.pad(scale, (0, len(self.packed) - len(scale)))

    def forward(self, x: Tensor) -> Tensor:
        if x.size(-1) != self.in_features:
            raise RuntimeError(f"inputs have {x.size(-1)} features, the weights {self.in_features}")
        if x.device.type != "cpu":
            raise RuntimeError(f"int8 weights are on the CPU, inputs on {x.device.type}")
        rows = x.float().reshape(-1, self.in_features)
        if rows.numel() <= min(ops.SMALL_BATCH * self.in_features, ops.SMALL_INPUT):
            y = ops.linear_small(rows, self.args)
        else:
            y = self._dequantized(rows)
        return y.view(*x.shape[:-1], self.out_features)

    def _dequantized(self, rows: Tensor) -> Tensor:
        """For many rows: weights are converted to float32, some outputs at a time; the product takes far longer."""
        outputs = []
        for start in range(0, self.out_features, DEQUANTIZED_OUTPUTS):
            end = min(start + DEQUANTIZED_OUTPUTS, self.out_features)
            weight = ops.unpack_int8(self.packed[start : start + DEQUANTIZED_OUTPUTS])
            weight = weight[: end - start, : self.in_features].float().mul_(self.scale[start:end, None])
            outputs.append(F.linear(rows, weight, None if self.bias is None else self.bias[start:end]))
        return torch.cat(outputs, -1)

    @property
    def args(self) -> Linear:
        """For our kernels."""
        return ops.linear_args(self.packed, self.bias, self.scale, (self.out_features, self.in_features))


class FbgemmInt8Linear(nn.Module):
    """The same without our kernels, by torch's fbgemm: inputs are quantized too, each row by its own range.

    torch's own dynamic quantization takes one range for all rows, which raises the perplexity of a language
    model by 10 %, and more with outliers.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        suppress_quantization_warning()
        weight = weight.detach().float()
        scale, quantized = quantize_weight(weight, 127)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        zero_points = torch.zeros(len(scale), dtype=torch.int64)
        per_channel = torch.quantize_per_channel(weight.contiguous(), scale.double(), zero_points, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(per_channel, self.bias)
        self.sums = quantized.sum(1).mul(scale)  # of each output's weights

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.aminmax(dim=-1, keepdim=True)
        width = (high - low).clamp_(min=1e-30)
        y = _fbgemm_linear((x - low).div_(width), 1 / FBGEMM_INPUT_LEVELS, 0, self.packed)
        y = y.mul_(width).addcmul_(low, self.sums)
        return y if self.bias is None else y.addcmul_(1 - width, self.bias)


class DynamicInt8Linear(nn.Module):
    """A linear layer with int8 weights and inputs for many rows, by oneDNN.

    Each row of inputs has its own scale, so that other rows of a batch do not change it. Where inputs have a known
    minimum, no levels are spent below it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, minimum: float | None = None):
        super().__init__()
        suppress_quantization_warning()
        weight = weight.detach().float()
        self.in_features = weight.size(1)
        self.out_features = weight.size(0)
        self.minimum = minimum
        self.scale, quantized = quantize_weight(weight, ONEDNN_WEIGHT_LEVELS)
        self.packed = torch.ops.onednn.qlinear_prepack(quantized.to(torch.int8), None)
        self.zero_points = torch.zeros(self.out_features, dtype=torch.int32)
        self.bias = torch.zeros(self.out_features) if bias is None else bias.detach().float()
        self.bias = self.bias + (minimum or 0.0) * quantized.sum(1) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        high = rows.amax(1, keepdim=True)
        if self.minimum is None:
            zero = INT8_ZERO
            step = torch.maximum(high, rows.amin(1, keepdim=True).neg_()).clamp_(min=1e-30).div_(127)
            quantized = to_uint8(rows * step.reciprocal(), zero)
        else:
            zero = 0
            step = high.sub_(self.minimum).clamp_(min=1e-30).div_(255)
            inverse = step.reciprocal()
            quantized = to_uint8(torch.addcmul(inverse * -self.minimum, rows, inverse), zero)
        weights = self.packed, self.scale, self.zero_points
        y = _onednn_linear(quantized, 1.0, zero, *weights, None, 1.0, 0, torch.float32, "none", [], "")
        return torch.addcmul(self.bias, y, step, out=y).view(*x.shape[:-1], -1)


def quantize_weight(weight: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """The scale of each output, and the weights as integers from −levels to levels."""
    scale = (weight.abs().amax(1) / levels).clamp(min=1e-30)
    return scale, weight.div(scale[:, None]).round_()


def to_uint8(x: Tensor, zero: int) -> Tensor:
    """Numbers rounded to bytes, where `zero` represents 0."""
    quantized = torch.quantize_per_tensor(x, 1.0, zero, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(quantized.untyped_storage(), 0, x.shape, x.stride())


@cache
def suppress_quantization_warning() -> None:
    """torch warns once that quantized tensors will move to another package: here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        to_uint8(torch.zeros(1), 0)


# With VNNI int8 products are summed in 32 bits; else one side must do with seven bits, or 16 bits overflow.
HAS_VNNI = bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())

FBGEMM_INPUT_LEVELS = 255 if HAS_VNNI else 127  # its weights have eight bits

# Its inputs have eight bits; weights lose one rather than inputs, because they have fewer outliers.
ONEDNN_HAS_VNNI = HAS_VNNI and not any(os.environ.get(name) in WITHOUT_VNNI for name in VARIABLES)
ONEDNN_WEIGHT_LEVELS = 127 if ONEDNN_HAS_VNNI else 63


def require_int8() -> None:
    """Refuse int8 where there are no kernels for it, neither ours nor torch's."""
    if ops.available():
        return
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        engines = ", ".join(torch.backends.quantized.supported_engines)
        raise UserError(
            "precision = 'int8' needs regard's own kernels (install a C compiler, then reinstall regard) or torch's "
            f"fbgemm, which this build lacks (it has: {engines}); possible here: float32, bfloat16"
        )
    torch.backends.quantized.engine = "fbgemm"
