"""A loaded network, rewritten for speed: packed projections, weights laid out anew or in eight bits, no padding."""

import torch
from torch import nn

from regard.attention.core import Attention
from regard.layers.activations import GeluTanh
from regard.layers.blocks import FeedForward
from regard.layers.encoder import Encoder
from regard.layers.generator import LanguageModel
from regard.runtime import products, unpadded
from regard.runtime.joint import Joint, joinable, sizes
from regard.runtime.products import LEAST, Head, Int8, Rounded, Streamed, require_int8, turn
from regard.runtime.swift import Swift, possible
from regard.runtime.unpadded import Unpadded

LOWEST: dict[type, float] = {nn.GELU: -0.1701, GeluTanh: -0.1701, nn.ReLU: 0.0}  # what activations give at least


def hasten(network: nn.Module, precision: str = "float32") -> nn.Module:
    """The network in place, computing the same faster; in "int8" nearly the same, much faster, and not to be saved."""
    if precision == "int8":
        require_int8()
        network.requires_grad_(False)  # products of bytes have no gradients
    with torch.no_grad():
        for encoder in [each for each in network.modules() if isinstance(each, Encoder)]:
            if unpadded.possible(encoder.encoder):
                hasten_encoder(encoder, precision)
        if isinstance(network, LanguageModel):
            for attention in [each for each in network.modules() if isinstance(each, Attention)]:
                pack(attention, precision, by_rows=products.BY_ROWS)
        if isinstance(network, LanguageModel) or precision == "int8":
            replace(network, precision)
        if isinstance(network, LanguageModel) and possible(network.decoder):
            network.decoder = Swift(network.decoder)
    return network


def hasten_encoder(encoder: Encoder, precision: str) -> None:
    """Its blocks, over real tokens alone."""
    kind = Rounded if torch.backends.mkldnn.is_available() else Int8
    for attention in [each for each in encoder.encoder.modules() if isinstance(each, Attention)]:
        pack(attention, precision, kind)
    for module in list(encoder.encoder.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or _packed(module, name):
                continue
            if precision != "int8":
                turn(child, always=True)
            elif kind is Rounded:
                bend = module.bend if isinstance(module, FeedForward) and name == "narrow" else None
                setattr(module, name, Rounded(child.weight, child.bias, LOWEST.get(type(bend))))
            else:
                setattr(module, name, Int8(child.weight, child.bias))
    encoder.encoder = Unpadded(encoder.encoder)


def pack(attention: Attention, precision: str, kind: type[Int8 | Rounded] = Int8, by_rows: bool = False) -> None:
    """Queries, keys and values in one product; the three weights become views of the one."""
    parts = joinable(attention)
    if not parts:
        return
    attention.sizes = sizes(parts)
    if precision != "int8":
        attention.together = Joint(parts, by_rows)
        return
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    attention.together = kind(torch.cat([part.weight for part in parts]), bias)
    attention.query = attention.key = attention.value = nn.Identity()  # never called: all comes from the one


def replace(network: nn.Module, precision: str) -> None:
    """Every other product, those of small tables aside."""
    tied = {id(each.weight) for each in network.modules() if isinstance(each, nn.Embedding)}
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or child.weight.numel() < LEAST:
                continue
            if precision == "int8":
                setattr(module, name, Int8(child.weight, child.bias))
            elif _packed(module, name):
                continue
            elif products.BY_ROWS:
                setattr(module, name, Streamed(child))
            elif id(child.weight) in tied:
                setattr(module, name, Head(child))
            else:
                turn(child)


def _packed(module: nn.Module, name: str) -> bool:
    return isinstance(module, Attention) and module.together is not None and name in ("query", "key", "value")
