"""A loaded network, rewritten for speed: packed projections, weights laid out anew or in eight bits, no padding."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from regard.attention.core import Attention
from regard.kernels import bindings as kernels
from regard.layers.activations import Gelu, GeluTanh
from regard.layers.autoregressive import CausalLM
from regard.layers.blocks import FeedForward
from regard.layers.encoder import Encoder
from regard.runtime import unpadded
from regard.runtime.fused_decoder import FusedDecoder, possible
from regard.runtime.linear import (
    LEAST,
    DynamicInt8Linear,
    Few,
    PackedLinear,
    PackedWeights,
    WeightOnlyInt8Linear,
    require_int8,
    store_column_major,
)
from regard.runtime.packed_qkv import PackedQKV, joinable, sizes
from regard.runtime.unpadded import Unpadded

Network = TypeVar("Network", bound=nn.Module)

LOWEST: dict[type, float] = {Gelu: -0.1701, GeluTanh: -0.1701, nn.ReLU: 0.0}  # what activations give at least


def optimize_for_inference(network: Network, precision: str = "float32") -> Network:
    """The network in place, computing the same faster; in "int8" nearly the same, much faster, and not to be saved."""
    if precision == "int8":
        require_int8()
        network.requires_grad_(False)  # products of bytes have no gradients
    with torch.no_grad():
        for encoder in [each for each in network.modules() if isinstance(each, Encoder)]:
            if unpadded.possible(encoder.encoder):
                optimize_encoder(encoder, precision)
            elif precision == "int8" and torch.backends.mkldnn.is_available():
                replace(encoder.encoder, lambda linear: DynamicInt8Linear(linear.weight, linear.bias))
        if isinstance(network, CausalLM):
            for attention in [each for each in network.modules() if isinstance(each, Attention)]:
                pack(attention, precision)
        if precision == "int8":
            replace(network, lambda linear: WeightOnlyInt8Linear(linear.weight, linear.bias))
        elif isinstance(network, CausalLM) and kernels.built():
            replace(network, Few)
        if isinstance(network, CausalLM) and possible(network.decoder):
            network.decoder = FusedDecoder(network.decoder)
    return network


def optimize_encoder(encoder: Encoder, precision: str) -> None:
    """Its blocks, over real tokens alone."""
    bytewise = DynamicInt8Linear if torch.backends.mkldnn.is_available() else WeightOnlyInt8Linear
    for attention in [each for each in encoder.encoder.modules() if isinstance(each, Attention)]:
        pack(attention, precision, bytewise, many=True)
    for module in list(encoder.encoder.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or _packed(module, name):
                continue
            if precision != "int8":
                if kernels.panelled():
                    setattr(module, name, PackedLinear(child))
                else:
                    store_column_major(child)
            elif bytewise is DynamicInt8Linear:
                bend = module.bend if isinstance(module, FeedForward) and name == "narrow" else None
                setattr(module, name, DynamicInt8Linear(child.weight, child.bias, LOWEST.get(type(bend))))
            else:
                setattr(module, name, WeightOnlyInt8Linear(child.weight, child.bias))
    encoder.encoder = Unpadded(encoder.encoder)


def pack(
    attention: Attention,
    precision: str,
    bytewise: type[WeightOnlyInt8Linear | DynamicInt8Linear] = WeightOnlyInt8Linear,
    many: bool = False,
) -> None:
    """Queries, keys and values in one product, of a few rows or of many."""
    parts = joinable(attention)
    if not parts:
        return
    attention.sizes = sizes(parts)
    if precision != "int8":
        attention.together = PackedWeights(parts) if many and kernels.panelled() else PackedQKV(parts, by_rows=not many)
        return
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    attention.together = bytewise(torch.cat([part.weight for part in parts]), bias)
    attention.query = attention.key = attention.value = nn.Identity()  # never called: all comes from the one


def replace(network: nn.Module, kind: Callable[[nn.Linear], nn.Module]) -> None:
    """Every other product, those of small tables aside."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.numel() >= LEAST and not _packed(module, name):
                setattr(module, name, kind(child))


def _packed(module: nn.Module, name: str) -> bool:
    return isinstance(module, Attention) and module.together is not None and name in ("query", "key", "value")
