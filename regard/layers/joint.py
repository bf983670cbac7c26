"""Queries, keys and values of the same x in one product: three thin ones, and the sums of their gradients, take longer.

The three weights become parts of one tensor, and stay the parameters that they were for whoever trains or saves them.
Gradients reach them by `backward` alone: `torch.autograd.grad` knows nothing of the whole.
Shapes: x (…, inputs), whole (outputs of all three, inputs).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention


def join(network: nn.Module) -> nn.Module:
    """The network in place, each attention that looks at itself with one product for its three projections."""
    for attention in [module for module in network.modules() if isinstance(module, Attention)]:
        parts = joinable(attention)
        if parts and all(parameter.requires_grad for part in parts for parameter in part.parameters()):
            attention.together = Joint(parts, trained=True)
            attention.sizes = sizes(parts)
    return network


def joinable(attention: Attention) -> list[nn.Linear]:
    """The three projections, where they are plain products of one input; else none."""
    parts = [attention.query, attention.key, attention.value]
    if not all(type(part) is nn.Linear for part in parts):
        return []
    linears = cast(list[nn.Linear], parts)
    alike = {(part.in_features, part.bias is None, part.weight.device) for part in linears}
    apart = len({id(part.weight) for part in linears}) == len(linears)
    return linears if len(alike) == 1 and apart else []


def sizes(parts: list[nn.Linear]) -> tuple[int, ...]:
    """How many outputs are queries, keys and values."""
    return tuple(part.out_features for part in parts)


class Joint:
    """The product; not a module, so that its parts are nobody's twice.

    Where it is not `trained`, its weights lie by columns, and gradients go the parts' own way.
    """

    def __init__(self, parts: list[nn.Linear], trained: bool = False):
        self.parts, self.trained = parts, trained
        self.weight = _joined([part.weight for part in parts], trained)
        self.bias = None if parts[0].bias is None else _joined([part.bias for part in parts], trained)

    def __call__(self, x: Tensor) -> Tensor:
        if self.holds and (self.trained or not torch.is_grad_enabled()):
            return F.linear(x, self.weight, self.bias)
        return torch.cat([part(x) for part in self.parts], -1)

    @property
    def holds(self) -> bool:
        """Whether the parameters still are parts of the one: others may have been put in their place, or frozen."""
        frozen = self.trained and not all(part.weight.requires_grad for part in self.parts)
        biases = self.bias is None or _holds(self.bias, [part.bias for part in self.parts])
        return not frozen and biases and _holds(self.weight, [part.weight for part in self.parts])


def _holds(whole: Tensor, parts: list[Any]) -> bool:
    place, step = whole.data_ptr(), whole.stride(0) * whole.element_size()
    for part in parts:
        if part.data_ptr() != place:
            return False
        place += len(part) * step
    return True


def _joined(parts: list[Any], trained: bool) -> Tensor:
    """One tensor whose parts are the parameters' data; its gradient goes to them."""
    whole, lengths = torch.cat([part.detach() for part in parts]), [len(part) for part in parts]
    if not trained and whole.ndim == 2:
        whole = whole.t().contiguous().t()
    for part, place in zip(parts, whole.split(lengths), strict=True):
        part.data = place

    def share(whole: Tensor) -> None:
        assert whole.grad is not None
        for part, gradient in zip(parts, whole.grad.split(lengths), strict=True):
            part.grad = gradient if part.grad is None else part.grad + gradient
        whole.grad = None

    if trained:
        whole.requires_grad_().register_post_accumulate_grad_hook(share)
    return whole
