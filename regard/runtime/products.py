"""Products with weights, rewritten for speed on a CPU: the same numbers in another order, or in eight bits.

A step over one token reads every weight once, so its time is that of the memory. Which kernels come near it depends on
the processor: on Intel's, MKL's do where weights are stored the other way round, by columns (24 instead of 22 GB/s); on
AMD's, oneDNN's do with weights as they are (20 to 31 GB/s where MKL has 15 to 23). In eight bits there is a quarter of
them to read.
"""

import platform
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError

warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)  # said once, of what may move one day
_static = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
_many = torch.ops.onednn.qlinear_pointwise.default
MIDDLE = 128  # the byte that stands for zero, where numbers may be on either side
FEW = 16  # rows of inputs, for which products in slices are faster
SLICES = (48, 32, 64)  # inputs of a slice
LEAST = 1 << 12  # weights: smaller products are left as they are
STREAMED = 64  # rows of inputs, up to which oneDNN reads weights in place


def _vendor() -> str:
    """Whose processor it is, in its own words."""
    said = Path("/proc/cpuinfo")
    return said.read_text() if said.is_file() else platform.processor()


BY_ROWS = torch.backends.mkldnn.is_available() and "AuthenticAMD" in _vendor()
CHUNK, STREAMS = (384, 24) if "AVX512" in torch.backends.cpu.get_cpu_capability() else (96, 1)


def streams(x: Tensor) -> bool:
    """Whether oneDNN's kernels for a few rows are the ones to take."""
    few = x.numel() <= STREAMED * x.size(-1)
    return few and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()


def streamed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product with weights by rows."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def turn(linear: nn.Linear, always: bool = False) -> None:
    """Store a weight by columns, unless its rows are longer: what is read one after another should be long.

    It stays the same parameter, of the same shape, for whoever trains or saves it.
    """
    if always or linear.in_features <= linear.out_features:
        linear.weight.data = linear.weight.data.t().contiguous().t()


def slice_of(inputs: int) -> int:
    """How many inputs to take at a time for a few rows: kernels for so few read weights in place, others copy first."""
    return next((size for size in SLICES if inputs % size == 0), inputs)


class Head(nn.Module):
    """The output of a network whose embedding has the same weights: there rows are looked up, here columns are read."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.columns = [linear.weight.detach().t().contiguous()]  # in a list, so that nobody saves or moves it
        self.size, self.version = slice_of(linear.in_features), linear.weight._version

    def forward(self, x: Tensor) -> Tensor:
        columns = self.columns[0]
        rows = x.numel() // x.size(-1)
        if torch.is_grad_enabled() or self.weight._version != self.version or x.dtype != columns.dtype:
            return F.linear(x, self.weight, self.bias)  # it is trained, or was, or is another's by now
        if not 1 < rows <= FEW:
            return F.linear(x, columns.t(), self.bias)
        y = x.new_zeros(rows, columns.size(1)) if self.bias is None else self.bias.repeat(rows, 1)
        for some, part in zip(x.reshape(rows, -1).split(self.size, 1), columns.split(self.size), strict=True):
            y.addmm_(some, part)
        return y.view(*x.shape[:-1], -1)


class Streamed(nn.Linear):
    """A product whose weights are read as they are, by the kernels that are fast for a few rows."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, input: Tensor) -> Tensor:
        if not streams(input):
            return F.linear(input, self.weight, self.bias)
        return streamed(input, self.weight, self.bias)


class Int8(nn.Module):
    """A product with weights of eight bits, kept twice: as one row of inputs wants them, and as several do.

    One row is a weighted sum of the weights' columns: torch's kernel for that, made for bags of embeddings, reads
    bytes as fast as the memory gives them and leaves the inputs in float32. For several rows there are products of
    bytes, with each row of the input rounded between its own smallest and largest number. torch's own way is to round
    all rows alike, which costs a language model a tenth of its perplexity, and more with every outlier.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        scale = (weight.abs().amax(1) / 127).clamp(min=1e-30).double()
        self.bias = None if bias is None else bias.detach().float()
        with warnings.catch_warnings():  # torch means to move these to another package one day
            warnings.simplefilter("ignore", UserWarning)
            zero = torch.zeros(len(scale), dtype=torch.int64)
            rounded = torch.quantize_per_channel(weight.float().contiguous(), scale, zero, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(rounded, self.bias)
        self.sums = rounded.int_repr().sum(1).mul(scale).float()  # of each output's weights
        self.in_features, self.out_features = weight.size(1), weight.size(0)
        self.row = Row(weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == self.in_features:
            return self.row(x.reshape(1, -1)).view(*x.shape[:-1], -1)
        low, high = x.aminmax(dim=-1, keepdim=True)
        width = (high - low).clamp_(min=1e-30)
        y = _static((x - low).div_(width), 1 / LEVELS, 0, self.packed).mul_(width).addcmul_(low, self.sums)
        return y if self.bias is None else y.addcmul_(1 - width, self.bias)


class Rounded(nn.Module):
    """A product with weights of eight bits for many rows, by oneDNN.

    Each row of inputs is rounded by its own largest number, each output's weights by theirs, so that what else stands
    in a batch changes nothing. Where inputs are known never to be under `low`, no byte is spent on what is.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, low: float | None = None):
        super().__init__()
        weight = weight.detach().float()
        self.in_features, self.out_features, self.low = weight.size(1), weight.size(0), low
        self.scale = (weight.abs().amax(1) / 127).clamp(min=1e-30)
        rounded = weight.div(self.scale[:, None]).round_()
        self.packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self.bias = torch.zeros(self.out_features) if bias is None else bias.detach().float()
        self.bias = self.bias + (low or 0.0) * rounded.sum(1) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        high = rows.amax(1, keepdim=True)
        if self.low is None:
            step, zero = torch.maximum(high, rows.amin(1, keepdim=True).neg_()).clamp_(min=1e-30).div_(STEPS), MIDDLE
            rounded = bytes_of(rows * step.reciprocal(), zero)
        else:
            step, zero = high.sub_(self.low).clamp_(min=1e-30).div_(LEVELS), 0
            finer = step.reciprocal()
            rounded = bytes_of(torch.addcmul(finer * -self.low, rows, finer), zero)
        weights = self.packed, self.scale, self.zeros
        y = _many(rounded, 1.0, zero, *weights, None, 1.0, 0, torch.float32, "none", [], "")
        return torch.addcmul(self.bias, y, step, out=y).view(*x.shape[:-1], -1)


def bytes_of(x: Tensor, zero: int) -> Tensor:
    """Numbers rounded to bytes, of which one stands for zero."""
    rounded = torch.quantize_per_tensor(x, 1.0, zero, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(rounded.untyped_storage(), 0, x.shape, x.stride())


class Row(nn.Module):
    """The product of one row, x (1, inputs)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.table, self.places, self.borders, self.chunks = Bags.of(weight)
        self.bias, self.outputs = bias, weight.size(0)

    def forward(self, x: Tensor) -> Tensor:
        weights = x.expand(self.chunks, -1).reshape(-1)
        y = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            self.table, self.places, self.borders, False, 0, False, weights, None, True
        ).view(1, -1)[:, : self.outputs]
        return y if self.bias is None else y.add_(self.bias)


class Bags(NamedTuple):
    """Weights of eight bits as a table of columns, for sums of them weighted by one row.

    Outputs are cut into chunks, each a bag; a column of a chunk has a scale and an offset of its own. Columns are laid
    out in strides, so that several streams are read from memory at once.
    """

    table: Tensor
    places: Tensor  # of each chunk's columns in the table
    borders: Tensor  # of the chunks
    chunks: int

    @classmethod
    def of(cls, weight: Tensor) -> "Bags":
        outputs, inputs = weight.shape
        chunks = -(-outputs // CHUNK)
        padded = F.pad(weight.detach().float(), (0, 0, 0, chunks * CHUNK - outputs))
        columns = padded.view(chunks, CHUNK, inputs).transpose(1, 2).reshape(chunks * inputs, CHUNK)
        packed = torch.ops.quantized.embedding_bag_byte_prepack(columns)
        streams = STREAMS if inputs % STREAMS == 0 else 1
        order = torch.arange(inputs) % streams * (inputs // streams) + torch.arange(inputs) // streams
        table = torch.empty_like(packed)
        table.view(chunks, inputs, -1)[:, order] = packed.view(chunks, inputs, -1)
        places = (torch.arange(chunks)[:, None] * inputs + order).flatten().int()
        return cls(table, places, torch.arange(0, chunks * inputs + 1, inputs, dtype=torch.int32), chunks)


def _has_vnni() -> bool:
    """Whether products of bytes are summed in 32 bits; elsewhere inputs must do with seven, or 16 bits overflow."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())


LEVELS = 255 if _has_vnni() else 127
STEPS = 127 if _has_vnni() else 63  # on either side of zero


def require_int8() -> None:
    """Refuse eight bits where this build of torch has no kernels for them."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        engines = ", ".join(torch.backends.quantized.supported_engines)
        raise UserError(
            f"precision = 'int8' needs torch's fbgemm kernels, which this build lacks (it has: {engines}); "
            "possible here: float32, bfloat16"
        )
    torch.backends.quantized.engine = "fbgemm"
