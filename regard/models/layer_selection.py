"""A network with some of its layers: where a smaller student begins. Sanh et al. 2019, section 3."""

from dataclasses import replace
from typing import Any

from torch import nn

from regard.errors import UserError
from regard.layers.blocks import Stack
from regard.layers.encoder import Encoder


def spaced(layers: int, kept: int) -> list[int]:
    """Which layers are kept: the first, the last, and between them as evenly as can be; of 12 six are 0 2 4 7 9 11."""
    return [round(number * (layers - 1) / max(kept - 1, 1)) for number in range(kept)]


def shorten(network: Any, depth: int) -> None:
    """Take out all layers of an encoder but so many."""
    body: Any = getattr(network, "body", network)
    if not isinstance(body, Encoder) or not isinstance(body.encoder, Stack):
        raise UserError(f"model.depth = {depth}: only an encoder of blocks can be made of some of them; remove it")
    if getattr(body.config, "hidden_groups", 0):
        raise UserError(f"model.depth = {depth}: the layers of model.from share their weights, so none can be left out")
    blocks = body.encoder.blocks
    if type(depth) is not int or not 1 <= depth <= len(blocks):
        raise UserError(f"model.depth = {depth}: model.from has {len(blocks)} layers; give 1 … {len(blocks)} of them")
    body.encoder.blocks = nn.ModuleList(blocks[number] for number in spaced(len(blocks), depth))
    body.config = replace(body.config, depth=depth)
