"""Low-rank adapters (LoRA, Hu et al. 2021): a frozen projection, and a thin one beside it that is trained.

    x ─┬─▶ weight, frozen ──────────────────────────────────┬─▶ +
       └─▶ down (rank, inputs) ─▶ up (outputs, rank) ─▶ · alpha / rank

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
    """How thick adapters are, how much they count, and which projections have one."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "AdapterOptions | None":
        """From a recipe's [model]; nothing where it asks for none."""
        rank, alpha = model.get("lora_rank", 0), model.get("lora_alpha", 16.0)
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
    """W x + alpha / rank · B A x, of which A (`down`) and B (`up`) are trained; B begins as zeros. Equation 3."""

    def __init__(self, projection: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.projection, self.alpha, self.scale = projection, alpha, alpha / rank
        like = projection.weight
        self.lora_a = nn.Parameter(like.new_empty(rank, projection.in_features))
        self.lora_b = nn.Parameter(like.new_zeros(projection.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as a new nn.Linear, and as others begin

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The projection alone, changed so that it computes the same."""
        self.projection.weight += self.lora_b @ self.lora_a * self.scale
        return self.projection


def adapt(network: nn.Module, options: AdapterOptions) -> None:
    """Freeze all weights, and put an adapter beside each projection of these names."""
    found = [place for place in _projections(network) if isinstance(place[2], nn.Linear)]
    there = [name for name in TARGETS if any(name == each for _, each, _ in found)]
    for word in options.targets:
        if word not in there:
            raise UserError(
                f"model.lora_targets: this {type(network).__name__} has no projection '{word}'; "
                f"possible: {', '.join(there) or 'none'}"
            )
    network.requires_grad_(False)
    for parent, name, projection in found:
        if name in options.targets:
            setattr(parent, name, Adapted(projection, options.rank, options.alpha))


def merge(network: nn.Module) -> None:
    """Add each adapter to its projection, in place; what remains is the network it was, with other weights."""
    for parent, name, child in list(_projections(network)):
        if isinstance(child, Adapted):
            setattr(parent, name, child.merged())
    network.requires_grad_(True)


def adapters(network: nn.Module) -> dict[str, Adapted]:
    """Each adapted projection by the name of its place."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Adapted)}


def _projections(network: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """What may have an adapter: (where it stands, its name there, it)."""
    for parent in network.modules():
        if isinstance(parent, Attention | FeedForward | GatedFeedForward):
            yield from ((parent, name, child) for name, child in parent.named_children() if name in TARGETS)
