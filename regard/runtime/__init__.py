"""A loaded network, rewritten for speed: packed projections, weights the other way round or in eight bits."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.layers.generator import LanguageModel
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
    parts = [attention.query, attention.key, attention.value]
    if not all(type(part) is nn.Linear for part in parts):
        return
    linears: list[Any] = parts
    whole = torch.cat([linear.weight for linear in linears]).t().contiguous().t()
    biased = [linear.bias for linear in linears if linear.bias is not None]
    if len(biased) not in (0, len(linears)):
        return
    bias = torch.cat(biased) if biased else None
    sizes = [linear.out_features for linear in linears]
    attention.sizes = tuple(sizes)  # type: ignore[assignment]
    if precision == "int8":
        attention.together = Int8(whole, bias)
        attention.query = attention.key = attention.value = nn.Identity()  # never called: all comes from the one
        return
    for linear, weight in zip(linears, whole.split(sizes), strict=True):
        linear.weight.data = weight
    for linear, each in zip(linears, bias.split(sizes) if bias is not None else (), strict=False):
        linear.bias.data = each
    attention.together = Product(whole, bias)


class Product:
    """A product that is nobody's parameter: its weights are those of others."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


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
