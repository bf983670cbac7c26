"""Low-rank adapters (LoRA, Hu et al. 2021): a trained low-rank matrix is added to a frozen projection.

    x ─┬─▶ weight, frozen ────────────────────────────┬─▶ +
       └─▶ A (rank, inputs) ─▶ B (outputs, rank) ─▶ · alpha / rank

Shapes: x (…, inputs).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.errors import UserError, nearest
from regard.layers.blocks import FeedForward, GatedFeedForward

TARGETS = ("query", "key", "value", "output", "up", "down", "gate")


@dataclass(frozen=True)
class AdapterOptions:
    """The rank of adapters, their scale alpha, and the projections that have one."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "AdapterOptions | None":
        """From a recipe's [model]; None without adapters."""
        rank = model.get("lora_rank", 0)
        alpha = model.get("lora_alpha", 16.0)
        targets = model.get("lora_targets", "query value")
        if type(rank) is not int or rank < 0:
            raise UserError(f"model.lora_rank = {rank!r} should be a whole number, 0 for none")
        if type(alpha) not in (int, float) or not 0 < alpha < math.inf:
            raise UserError(f"model.lora_alpha = {alpha!r} should be a number above 0")
        if not isinstance(targets, str) or not targets.split():
            raise UserError(f"model.lora_targets = {targets!r} should be words such as 'query value'")
        for word in targets.split():
            if word not in TARGETS:
                raise UserError(f"model.lora_targets: '{word}' is no projection{nearest(word, TARGETS)}")
        return cls(rank, float(alpha), tuple(dict.fromkeys(targets.split()))) if rank else None


class Adapted(nn.Module):
    """W x + alpha / rank · B A x. A and B are trained, B is initialised to zero. Hu et al. 2021, equation 3."""

    def __init__(self, projection: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.projection = projection
        self.alpha = alpha
        self.scale = alpha / rank
        like = projection.weight
        self.lora_a = nn.Parameter(like.new_empty(rank, projection.in_features))
        self.lora_b = nn.Parameter(like.new_zeros(projection.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as nn.Linear, and as PEFT does

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The projection with the adapter added to its weight."""
        self.projection.weight += self.lora_b @ self.lora_a * self.scale
        return self.projection


def adapt(network: nn.Module, options: AdapterOptions) -> None:
    """Freeze all weights, and add an adapter to each target projection."""
    linears = [entry for entry in _projections(network) if isinstance(entry[2], nn.Linear)]
    names = {name for _, name, _ in linears}
    possible = [name for name in TARGETS if name in names]
    for word in options.targets:
        if word not in possible:
            raise UserError(
                f"model.lora_targets: this {type(network).__name__} has no projection '{word}'; "
                f"possible: {', '.join(possible) or 'none'}"
            )
    network.requires_grad_(False)
    for parent, name, projection in linears:
        if name in options.targets:
            setattr(parent, name, Adapted(projection, options.rank, options.alpha))


def merge(network: nn.Module) -> None:
    """Merge each adapter into its projection, in place."""
    for parent, name, child in list(_projections(network)):
        if isinstance(child, Adapted):
            setattr(parent, name, child.merged())
    network.requires_grad_(True)


def adapters(network: nn.Module) -> dict[str, Adapted]:
    """The adapted projections by module name."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Adapted)}


def _projections(network: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """The projections that may have an adapter: (parent module, name, projection)."""
    for parent in network.modules():
        if isinstance(parent, Attention | FeedForward | GatedFeedForward):
            yield from ((parent, name, child) for name, child in parent.named_children() if name in TARGETS)
