"""A loaded network, rewritten for speed: packed projections, weights the other way round or in eight bits."""

import torch
from torch import nn

from regard.attention.core import Attention
from regard.layers.generator import LanguageModel
from regard.layers.joint import Joint, joinable, sizes
from regard.runtime.products import LEAST, Head, Int8, require_int8, turn
from regard.runtime.swift import Swift, possible


def hasten(network: nn.Module, precision: str = "float32") -> nn.Module:
    """The network in place, computing the same faster; in "int8" nearly the same, much faster, and not to be saved."""
    if precision == "int8":
        require_int8()
    elif not isinstance(network, LanguageModel):
        return network
    with torch.no_grad():
        if isinstance(network, LanguageModel):
            for attention in [each for each in network.modules() if isinstance(each, Attention)]:
                pack(attention, precision)
        replace(network, precision)
        if isinstance(network, LanguageModel) and possible(network.decoder):
            network.decoder = Swift(network.decoder)
    return network


def pack(attention: Attention, precision: str) -> None:
    """Queries, keys and values in one product; the three weights become views of the one."""
    parts = joinable(attention)
    if not parts:
        return
    attention.sizes = sizes(parts)
    if precision != "int8":
        attention.together = Joint(parts)
        return
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    attention.together = Int8(torch.cat([part.weight for part in parts]), bias)
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
            elif id(child.weight) in tied:
                setattr(module, name, Head(child))
            elif not _packed(module, name):
                turn(child)


def _packed(module: nn.Module, name: str) -> bool:
    return isinstance(module, Attention) and module.together is not None and name in ("query", "key", "value")
