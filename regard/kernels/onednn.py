"""float32 linear layers by oneDNN, on CPUs where it is faster than the BLAS of torch.

MKL, which torch's x86-64 builds use, has AVX-512 for CPUs of Intel only; oneDNN has it for all. On an AMD EPYC of the
fifth generation oneDNN needs less than half the time for the same product (docs/performance.md).
oneDNN generates code for each size of input and keeps it, about a megabyte a size. So it is for images, which have one
size, and not for texts.

Shapes: x (…, inputs), weight (outputs, inputs), bias (outputs).
"""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.amx import VARIABLES

FORCED = "REGARD_ONEDNN"  # "1" or "0": whether it is used, for tests


@cache
def is_faster() -> bool:
    """Whether oneDNN uses AVX-512 on this CPU, and MKL does not."""
    forced = os.environ.get(FORCED)
    if forced in ("0", "1"):
        return forced == "1" and _available()
    limited = any(not os.environ.get(name, "AVX512").startswith(("AVX512", "DEFAULT", "ALL")) for name in VARIABLES)
    return (
        _available()
        and torch.backends.mkl.is_available()
        and "AVX512" in torch.backends.cpu.get_cpu_capability()
        and not limited
        and _vendor() == "AuthenticAMD"
    )


def _available() -> bool:
    """Whether this torch has the product that inductor also uses."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _vendor() -> str:
    """The manufacturer of the CPU; unknown except on Linux."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if platform.machine() == "x86_64" and path.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def supports(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` can compute this product: of float32 on the CPU, not under autocast or a compiler of torch."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    return plain and not traced and not torch.is_autocast_enabled("cpu") and x.numel() > 0 and weight.numel() > 0


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias, with or without gradients."""
    rows = x.reshape(-1, x.size(-1))
    return _Linear.apply(rows, weight, bias).view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_x else None,
            _product(gradient.t(), x.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias of matrices that may be transposed."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
