"""A loaded network, rewritten for inference: packed projections, weights in another order or as int8, no padding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from regard.attention.core import Attention
from regard.kernels import onednn, ops
from regard.layers.autoregressive import TransformerLM
from regard.layers.blocks import FeedForward
from regard.layers.encoder import Encoder
from regard.layers.image_encoder import ImageEncoder
from regard.runtime import fused_decoder, unpadded
from regard.runtime.fused_decoder import FusedDecoder
from regard.runtime.linear import (
    MIN_WEIGHTS,
    DynamicInt8Linear,
    FbgemmInt8Linear,
    PackedLinear,
    PackedQKV,
    PackedWeights,
    SmallBatchLinear,
    WeightOnlyInt8Linear,
    packable,
    require_int8,
    store_column_major,
)
from regard.runtime.unpadded import Unpadded

Network = TypeVar("Network", bound=nn.Module)
Int8Linear = type[WeightOnlyInt8Linear | FbgemmInt8Linear | DynamicInt8Linear]

MINIMUM: dict[type, float] = {nn.GELU: -0.1701, nn.ReLU: 0.0}  # of what activations return


def optimize_for_inference(network: Network, precision: str = "float32") -> Network:
    """The network in place, with the same results faster; "int8" is nearly the same, and cannot be saved."""
    if precision == "int8":
        require_int8()
        network.requires_grad_(False)  # int8 layers have no gradients
    with torch.no_grad():
        for encoder in [module for module in network.modules() if isinstance(module, Encoder)]:
            optimize_encoder(encoder, precision)
        if isinstance(network, TransformerLM):
            for attention in [module for module in network.modules() if isinstance(module, Attention)]:
                pack_qkv(attention, precision, small_batch_int8())
        if precision == "int8":
            int8_linear = small_batch_int8()
            replace_linears(network, lambda linear: int8_linear(linear.weight, linear.bias))
        elif onednn.is_faster() or (isinstance(network, TransformerLM) and ops.available()):
            replace_linears(network, SmallBatchLinear)
        if isinstance(network, TransformerLM) and fused_decoder.is_supported(network.decoder):
            network.decoder = FusedDecoder(network.decoder)
    return network


@contextmanager
def optimized_for_training(network: nn.Module) -> Iterator[None]:
    """Linear layers are computed by oneDNN within, where that is faster; parameters and their names stay."""
    linears = [module for module in network.modules() if type(module) is nn.Linear] if onednn.is_faster() else []
    for linear in linears:
        linear.__class__ = SmallBatchLinear
    try:
        yield
    finally:
        for linear in linears:
            linear.__class__ = nn.Linear


def small_batch_int8() -> type[WeightOnlyInt8Linear | FbgemmInt8Linear]:
    """The int8 layer for a few rows."""
    return WeightOnlyInt8Linear if ops.available() else FbgemmInt8Linear


def optimize_encoder(encoder: Encoder, precision: str) -> None:
    """Its blocks, over real tokens alone where that is supported."""
    blocks: nn.Module = getattr(encoder, "encoder", encoder)
    if unpadded.is_supported(blocks):
        optimize_layers(blocks, precision)
        encoder.encoder = Unpadded(blocks)
    elif isinstance(encoder, ImageEncoder):
        optimize_layers(blocks, precision)
    elif precision == "int8" and torch.backends.mkldnn.is_available():
        replace_linears(blocks, lambda linear: DynamicInt8Linear(linear.weight, linear.bias))


def optimize_layers(blocks: nn.Module, precision: str) -> None:
    """The attention and linear layers of an encoder's blocks, for many positions at a time."""
    int8_linear: Int8Linear = DynamicInt8Linear if torch.backends.mkldnn.is_available() else small_batch_int8()
    for attention in [module for module in blocks.modules() if isinstance(module, Attention)]:
        pack_qkv(attention, precision, int8_linear, many_rows=True)
    for module, name, child in _linears(blocks):
        if precision == "int8" and int8_linear is DynamicInt8Linear:
            activation = module.activation if isinstance(module, FeedForward) and name == "down" else None
            minimum = MINIMUM.get(type(activation))
            setattr(module, name, DynamicInt8Linear(child.weight, child.bias, minimum))
        elif precision == "int8":
            setattr(module, name, int8_linear(child.weight, child.bias))
        elif ops.use_packed_gemm():
            setattr(module, name, PackedLinear(child))
        elif onednn.is_faster():
            setattr(module, name, SmallBatchLinear(child))
        else:
            store_column_major(child)


def pack_qkv(attention: Attention, precision: str, int8_linear: Int8Linear, many_rows: bool = False) -> None:
    """Compute queries, keys and values by one matrix product."""
    layers = packable(attention)
    if not layers:
        return
    attention.sizes = tuple(layer.out_features for layer in layers)
    if precision == "int8":
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        attention.qkv = int8_linear(torch.cat([layer.weight for layer in layers]), bias)
        attention.query = attention.key = attention.value = nn.Identity()  # never called
    elif many_rows and ops.use_packed_gemm():
        attention.qkv = PackedWeights(layers)
    else:
        attention.qkv = PackedQKV(layers, row_major=onednn.is_faster() or not many_rows)


def replace_linears(network: nn.Module, build: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace every other linear layer, except small ones."""
    for module, name, child in _linears(network):
        if child.weight.numel() >= MIN_WEIGHTS:
            setattr(module, name, build(child))


def _linears(network: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The linear layers that are not part of a packed product: (parent module, name, layer)."""
    return [
        (module, name, child)
        for module in network.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
        and not (isinstance(module, Attention) and module.qkv is not None and name in ("query", "key", "value"))
    ]
