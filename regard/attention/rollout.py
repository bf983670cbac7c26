"""Attention rollout: how much each output position of an encoder draws on each input position. Abnar & Zuidema 2020.

    Ãₗ = normalise(½ W̄ₗ + ½ I)        W̄ₗ = the weights of layer l, averaged over heads; I = the residual connection
    R = Ã_L · … · Ã₂ · Ã₁              each row of R sums to 1

An approximation: it ignores values, feed-forward layers and norms.

Shapes, throughout:
    weights    (heads, n, n), or (n, n) if averaged; rows are queries
    rollout    (n, n); rows are outputs of the last layer, columns are inputs of the first
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from regard.attention.trace import Trace
from regard.errors import UserError, listed

SITES = "encoder.*.self"  # the self-attention of an encoder
MAX_POSITIONS = 4096  # about five matrices of n × n are in memory at a time: 340 MB in float32


def rollout(weights: Iterable[Tensor]) -> Tensor:
    """The rollout of layers, from the first to the last; they may be computed one at a time by a generator."""
    result = None
    for layer in weights:
        mean = layer if layer.dim() == 2 else layer.mean(0)
        mixed = 0.5 * mean + 0.5 * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        result = mixed if result is None else mixed @ result
    if result is None:
        raise ValueError("attention rollout needs the weights of at least one layer")
    return result


def trace_rollout(trace: Trace, sites: Sequence[str] | None = None) -> Tensor:
    """The rollout of a trace's encoder, or of the given self-attention sites, in this order."""
    chosen = [site for site in trace.sites if fnmatchcase(site, SITES)] if sites is None else list(sites)
    if not chosen:
        existing = listed(trace.sites) or "none"
        raise UserError(f"attention rollout needs self-attention layers of an encoder; attention here: {existing}")
    sizes = {site: _size(trace, site) for site in chosen}
    if len(set(sizes.values())) > 1:
        different = listed(f"{site} ({size})" for site, size in sizes.items())
        raise UserError(f"attention rollout needs the same number of positions in all layers, not {different}")
    return rollout(_mean(trace, site) for site in chosen)


def _size(trace: Trace, site: str) -> int:
    """The number of positions of a site; an error unless all attend to all."""
    size = trace.weights(site, head=0, rows=slice(0, 1)).size(-1)
    if trace.axes.at(site) is None and trace.records[site][0].query.size(0) > 1:  # several inputs, or windows of one
        raise UserError(f"attention rollout needs the axes of a trace of several sequences; '{site}' has none")
    queries = len(trace.labels(site)[0])
    if queries != size:
        raise UserError(
            "attention rollout needs self-attention over all positions, with as many queries as keys; "
            f"'{site}' has {queries} queries and {size} keys"
        )
    if size > MAX_POSITIONS:
        raise UserError(
            f"attention rollout computes matrices of n × n, up to {MAX_POSITIONS:,} positions; '{site}' has {size:,}"
        )
    return size


def _mean(trace: Trace, site: str) -> Tensor:
    """The mean over heads, which are computed one at a time."""
    heads = trace.weights(site, rows=slice(0, 1)).size(0)
    total = trace.weights(site, head=0)
    for head in range(1, heads):
        total = total + trace.weights(site, head=head)
    return total / heads
