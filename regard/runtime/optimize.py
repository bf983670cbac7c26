"""A loaded network, rewritten for speed: packed projections, weights laid out anew or in eight bits, no padding."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from regard.attention.core import Attention
from regard.kernels import bindings as kernels
from regard.layers.activations import Gelu, GeluTanh
from regard.layers.autoregressive import LanguageModel
from regard.layers.blocks import FeedForward
from regard.layers.encoder import Encoder
from regard.runtime import unpadded
from regard.runtime.fused_decoder import Swift, possible
from regard.runtime.linear import LEAST, Few, Int8, Laid, Panels, Rounded, require_int8, turn
from regard.runtime.packed_qkv import Joint, joinable, sizes
from regard.runtime.unpadded import Unpadded

Network = TypeVar("Network", bound=nn.Module)

LOWEST: dict[type, float] = {Gelu: -0.1701, GeluTanh: -0.1701, nn.ReLU: 0.0}  # what activations give at least


def hasten(network: Network, precision: str = "float32") -> Network:
    """The network in place, computing the same faster; in "int8" nearly the same, much faster, and not to be saved."""
    if precision == "int8":
        require_int8()
        network.requires_grad_(False)  # products of bytes have no gradients
    with torch.no_grad():
        for encoder in [each for each in network.modules() if isinstance(each, Encoder)]:
            if unpadded.possible(encoder.encoder):
                hasten_encoder(encoder, precision)
            elif precision == "int8" and torch.backends.mkldnn.is_available():
                replace(encoder.encoder, lambda linear: Rounded(linear.weight, linear.bias))
        if isinstance(network, LanguageModel):
            for attention in [each for each in network.modules() if isinstance(each, Attention)]:
                pack(attention, precision)
        if precision == "int8":
            replace(network, lambda linear: Int8(linear.weight, linear.bias))
        elif isinstance(network, LanguageModel) and kernels.built():
            replace(network, Few)
        if isinstance(network, LanguageModel) and possible(network.decoder):
            network.decoder = Swift(network.decoder)
    return network


def hasten_encoder(encoder: Encoder, precision: str) -> None:
    """Its blocks, over real tokens alone."""
    bytewise = Rounded if torch.backends.mkldnn.is_available() else Int8
    for attention in [each for each in encoder.encoder.modules() if isinstance(each, Attention)]:
        pack(attention, precision, bytewise, many=True)
    for module in list(encoder.encoder.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or _packed(module, name):
                continue
            if precision != "int8":
                if kernels.panelled():
                    setattr(module, name, Panels(child))
                else:
                    turn(child)
            elif bytewise is Rounded:
                bend = module.bend if isinstance(module, FeedForward) and name == "narrow" else None
                setattr(module, name, Rounded(child.weight, child.bias, LOWEST.get(type(bend))))
            else:
                setattr(module, name, Int8(child.weight, child.bias))
    encoder.encoder = Unpadded(encoder.encoder)


def pack(attention: Attention, precision: str, bytewise: type[Int8 | Rounded] = Int8, many: bool = False) -> None:
    """Queries, keys and values in one product, of a few rows or of many."""
    parts = joinable(attention)
    if not parts:
        return
    attention.sizes = sizes(parts)
    if precision != "int8":
        attention.together = Laid(parts) if many and kernels.panelled() else Joint(parts, by_rows=not many)
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
