"""Our C kernels as functions of tensors, with torch's own where ours were not built or do not apply.

The kernels take pointers: callers of the functions that have no fallback check `supports_…` or `is_…` first.
"""

import ctypes
from ctypes import byref, c_long
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.kernels import bindings
from regard.kernels.bindings import AttentionArgs, Linear, Norm, Rotary, View

SMALL_BATCH = 64  # rows up to which `linear_small` is faster than torch,
SMALL_INPUT = 1 << 18  # and numbers in them
LANES = 8  # as in simd.h
TILE_COLUMNS = 16  # as in gemm_tile.h
MIN_QUERIES = 6  # with fewer queries or more keys, torch's attention is faster
MAX_KEYS = 2048

ACTIVATION_IDS = {nn.ReLU: 1, nn.SiLU: 4, nn.Tanh: 5}  # as in simd.h
GELU_IDS = {"none": 2, "tanh": 3}


def available() -> bool:
    """Whether the kernels were built and run on this CPU."""
    return bindings.KERNELS is not None


def use_packed_gemm() -> bool:
    """Whether our products with packed weights are faster than torch's: not where torch uses AVX-512."""
    return available() and "AVX512" not in torch.backends.cpu.get_cpu_capability()


def activation_id(activation: nn.Module) -> int:
    """An activation as the kernels know it; 0 for one that they do not know."""
    if type(activation) is nn.GELU:
        return GELU_IDS[activation.approximate]
    return ACTIVATION_IDS.get(type(activation), 0)


def is_inference(x: Tensor) -> bool:
    """Whether kernels may take x: float32 on the CPU, no gradients, no autocast, not traced or compiled by torch."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    changed = traced or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    return x.dtype == torch.float32 and x.device.type == "cpu" and not changed


def is_contiguous_float32(parameter: Tensor) -> bool:
    """Whether kernels can read a parameter where it is."""
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu" and parameter.is_contiguous()


# ── linear layers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def supports_small_batch(x: Tensor) -> bool:
    """Whether x has few rows and may go through `linear_small` or `decode_step`."""
    return available() and is_inference(x) and x.numel() <= min(SMALL_BATCH * x.size(-1), SMALL_INPUT)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias."""
    if supports_small_batch(x) and x.size(-1) == weight.size(1) and is_contiguous_float32(weight):
        return linear_small(x, linear_args(weight, bias))
    return F.linear(x, weight, bias)


def linear_args(
    weight: Tensor, bias: Tensor | None, scale: Tensor | None = None, shape: tuple[int, int] | None = None
) -> Linear:
    """Pointers to these, which must outlive them. int8 weights have a scale, and are padded from `shape`."""
    return Linear(weight.data_ptr(), _pointer(scale), _pointer(bias), *(shape or weight.shape))


def norm_args(module: nn.LayerNorm | nn.RMSNorm) -> Norm:
    epsilon = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    bias = getattr(module, "bias", None)
    return Norm(_pointer(module.weight), _pointer(bias), epsilon, isinstance(module, nn.LayerNorm))


def linear_small(x: Tensor, args: Linear) -> Tensor:
    """x · weightᵀ + bias, for a few rows."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], args.outputs)
    rows = x.numel() // args.inputs
    bindings.KERNELS.regard_linear_small(byref(args), x.data_ptr(), y.data_ptr(), rows, torch.get_num_threads())
    return y


def decode_step(blocks: Any, caches: Any, sources: Any, x: Tensor, length: int, rotary: Rotary) -> None:
    """x (rows, width) through the blocks, in place; its keys and values are appended to caches of `length` tokens.

    `sources` are those of the blocks' cross-attention, or None.
    """
    rows, width = x.shape
    step = bindings.KERNELS.regard_decode_step
    _check(step, blocks, caches, sources, len(blocks), x.data_ptr(), rows, width, length, byref(rotary))


def pack_int8(weight: Tensor) -> Tensor:
    """int8 weights (outputs, inputs) in the order that `linear_small` reads them, both padded to multiples of eight."""
    outputs, inputs = weight.shape
    packed = weight.new_empty(-(-outputs // LANES) * LANES, -(-inputs // LANES) * LANES)
    weight = weight.contiguous()
    bindings.KERNELS.regard_pack_int8(weight.data_ptr(), packed.data_ptr(), outputs, inputs)
    return packed


def unpack_int8(packed: Tensor) -> Tensor:
    """Rows of packed weights, a multiple of eight, as (outputs, inputs) again."""
    return packed.view(-1, packed.size(1) // LANES, LANES, LANES).transpose(1, 2).reshape(packed.shape)


def pack_weights(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (outputs, inputs) in the order that `gemm_packed` reads them, and their bias; both padded."""
    outputs, inputs = weight.shape
    padded = -(-outputs // TILE_COLUMNS) * TILE_COLUMNS
    packed = weight.new_empty(padded * inputs)
    weight = weight.contiguous()
    bindings.KERNELS.regard_pack_weights(weight.data_ptr(), packed.data_ptr(), outputs, inputs)
    return packed, weight.new_zeros(padded) if bias is None else F.pad(bias, (0, padded - outputs))


def gemm_packed(
    x: Tensor, packed: Tensor, bias: Tensor, outputs: int, residual: Tensor | None, activation: int
) -> Tensor:
    """activation(x · weightᵀ + bias + residual), with packed weights and a padded bias."""
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    y = x.new_empty(*x.shape[:-1], outputs)
    pointers = x.data_ptr(), packed.data_ptr(), bias.data_ptr(), _pointer(residual), y.data_ptr()
    sizes = x.numel() // x.size(-1), outputs, x.size(-1)
    bindings.KERNELS.regard_gemm_packed(*pointers, *sizes, activation, torch.get_num_threads())
    return y


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────────
# Shapes: query (batch, heads, queries, width), key and value (batch, key heads, length, width).


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """softmax(scale · query · keyᵀ + mask) · value without the matrix of all weights; a mask may be boolean."""
    if mask is None and supports_attention(query, key, value, causal):
        return flash_attention(query, key, value, scale, causal)
    grouped = key.size(1) != query.size(1)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def supports_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    """Whether our FlashAttention takes these, and is faster for them than torch."""
    if not available() or not is_inference(query) or query.ndim != 4 or key.ndim != 4 or key.shape != value.shape:
        return False
    batch, heads, queries, width = query.shape
    key_batch, key_heads, length, key_width = key.shape
    fits = batch == key_batch and heads % key_heads == 0 and width == key_width and (not causal or queries == length)
    readable = all(part.stride(-1) == 1 and part.dtype == query.dtype for part in (query, key, value))
    return fits and readable and queries >= MIN_QUERIES and 0 < length <= MAX_KEYS


def flash_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Tensor:
    """Dao et al. 2022, without gradients (flash_attention.c)."""
    batch, heads, queries, width = query.shape
    context = query.new_empty(batch, queries, heads, width)
    args = _attention_args(query, key, value, scale, causal)
    _check(bindings.KERNELS.regard_attention, byref(args), context.data_ptr())
    return context.transpose(1, 2)


def attention_varlen(qkv: Tensor, lengths: list[int], heads: int, scale: float) -> Tensor:
    """Self-attention within each of several concatenated sequences: (tokens, 3 · width) → (tokens, width)."""
    context = qkv.new_empty(len(qkv), qkv.size(1) // 3)
    if not len(qkv):
        return context
    query, key, value = qkv.contiguous().view(1, len(qkv), 3, heads, -1).permute(2, 0, 3, 1, 4)
    args = _attention_args(query, key, value, scale, causal=False)
    sizes = (c_long * len(lengths))(*lengths)
    starts = (c_long * len(lengths))(*accumulate([0, *lengths[:-1]]))
    args.lengths = ctypes.addressof(sizes)
    args.starts = ctypes.addressof(starts)
    args.batch = len(lengths)
    args.queries = args.length = max(lengths)
    _check(bindings.KERNELS.regard_attention, byref(args), context.data_ptr())
    return context


def _attention_args(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> AttentionArgs:
    batch, heads, queries, width = query.shape
    sizes = batch, queries, key.size(2), heads, key.size(1), width
    return AttentionArgs(_view(query), _view(key), _view(value), None, None, *sizes, causal, scale)


def _view(tensor: Tensor) -> View:
    return View(tensor.data_ptr(), *tensor.stride()[:3])


def _check(kernel: Any, *arguments: Any) -> None:
    if kernel(*arguments, torch.get_num_threads()):
        raise MemoryError("not enough memory for the scratch space of a kernel")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
