"""A network with a subset of its layers, to initialise a smaller student. Sanh et al. 2019, section 3."""

from dataclasses import replace
from typing import Any

from torch import nn

from regard.errors import UserError
from regard.layers.blocks import Stack
from regard.layers.encoder import Encoder


def spaced(layers: int, kept: int) -> list[int]:
    """The indices of evenly spaced layers, from the first to the last; six of 12 are 0 2 4 7 9 11."""
    return [round(index * (layers - 1) / max(kept - 1, 1)) for index in range(kept)]


def shorten(network: Any, depth: int) -> None:
    """Keep `depth` evenly spaced layers of an encoder, in place."""
    body: Any = getattr(network, "body", network)
    if not isinstance(body, Encoder) or not isinstance(body.encoder, Stack):
        raise UserError(f"model.depth = {depth}: only encoders of Transformer blocks can be shortened; remove it")
    if getattr(body.config, "hidden_groups", 0):
        raise UserError(f"model.depth = {depth}: the layers of model.from share their weights, so none can be removed")
    blocks = body.encoder.blocks
    if type(depth) is not int or not 1 <= depth <= len(blocks):
        raise UserError(f"model.depth = {depth}: model.from has {len(blocks)} layers; give 1 … {len(blocks)} of them")
    body.encoder.blocks = nn.ModuleList(blocks[index] for index in spaced(len(blocks), depth))
    body.config = replace(body.config, depth=depth)
