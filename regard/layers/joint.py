"""Queries, keys and values of the same x in one product: three thin ones, and the sums of their gradients, take longer.

The three weights become parts of one tensor, and stay the parameters that they were for whoever trains or saves them.
Shapes: x (…, inputs), whole (outputs of all three, inputs).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention


def join(network: nn.Module) -> nn.Module:
    """The network in place, each attention that looks at itself with one product for its three projections."""
    for attention in network.modules():
        if isinstance(attention, Attention) and (parts := joinable(attention)):
            attention.together = Joint(parts)
            attention.sizes = tuple(part.out_features for part in parts)  # type: ignore[assignment]
    return network


def joinable(attention: Attention) -> list[nn.Linear]:
    """The three projections, where they are plain products of one input and all are trained; else none."""
    parts = [attention.query, attention.key, attention.value]
    if not all(type(part) is nn.Linear for part in parts):
        return []
    linears = cast(list[nn.Linear], parts)
    alike = {(part.in_features, part.bias is None, part.weight.device) for part in linears}
    trained = all(parameter.requires_grad for part in linears for parameter in part.parameters())
    apart = len({id(part.weight) for part in linears}) == len(linears)
    return linears if len(alike) == 1 and apart and trained else []


class Joint:
    """The product; not a module, so that its parts are nobody's twice."""

    def __init__(self, parts: list[nn.Linear]):
        self.parts = parts
        self.whole = _joined([part.weight for part in parts])
        self.bias = None if parts[0].bias is None else _joined([part.bias for part in parts])

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.whole, self.bias) if self.holds else torch.cat([part(x) for part in self.parts], -1)

    @property
    def holds(self) -> bool:
        """Whether the parameters still are parts of the one: others may have been put in their place."""
        place = self.whole.data_ptr()
        for part in self.parts:
            if part.weight.data_ptr() != place:
                return False
            place += part.weight.nbytes
        return True


def _joined(parts: list[Any]) -> Tensor:
    """One tensor whose parts are the parameters' data; its gradient goes to them."""
    whole, sizes = torch.cat([part.detach() for part in parts]), [len(part) for part in parts]
    for part, place in zip(parts, whole.split(sizes), strict=True):
        part.data = place

    def share(whole: Tensor) -> None:
        assert whole.grad is not None
        for part, gradient in zip(parts, whole.grad.split(sizes), strict=True):
            part.grad = gradient if part.grad is None else part.grad + gradient
        whole.grad = None

    whole.requires_grad_().register_post_accumulate_grad_hook(share)
    return whole
