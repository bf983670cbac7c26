"""A text → batches of packed blocks, in an order that is a pure function of (seed, batch number).

    epoch e:   the text as a ring, cut into blocks from an offset on that (seed, e) draws
               block i   tokens offset + i·length … offset + (i + 1)·length, both ends included
               a Feistel permutation of the blocks, keyed by (seed, e)
    batch k:   blocks k·size … (k + 1)·size of the endless stream of epochs
    rank r of world takes batches k·world + r.

Neighbours share one token, the last of one and the first of the next, so that each token is a target once an epoch. The
fewer than `length` tokens that fill no block sit out; where they stand changes with the offset. One block of the ring
goes on from the text's last token to its first.

Shapes: batch, length.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.sampler import ROUNDS, permute
from regard.data.token_stream import Stream
from regard.errors import UserError
from regard.layers.pytree import to_device


class BlockBatch(NamedTuple):
    """BlockBatch of a text: all tokens but the last are read, all but the first are to be told."""

    tokens: Tensor  # (batch, length + 1)
    index: Tensor  # (batch): the blocks' numbers in their epoch

    def to(self, device: torch.device | str) -> "BlockBatch":
        return to_device(self, device)


@dataclass(frozen=True)
class PackOptions:
    """How many tokens a block reads, how many blocks a batch has, and what decides the order."""

    length: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")


def blocks_per_epoch(stream: Stream, options: PackOptions) -> int:
    if len(stream) < options.length + 1:
        raise UserError(
            f"the text has {len(stream)} tokens, but a block takes {options.length + 1} (data.max_length = "
            f"{options.length}, and the token to be told after the last): lower data.max_length, or give more text"
        )
    return len(stream) // options.length


def batches_per_epoch(stream: Stream, options: PackOptions) -> int:
    """The batches, of all ranks together, in which each block has come at least once."""
    return -(-blocks_per_epoch(stream, options) // options.batch_size)


def epochs(stream: Stream, options: PackOptions, batches: int) -> float:
    """How many epochs the first `batches` batches of all ranks together are."""
    return batches * options.batch_size / blocks_per_epoch(stream, options)


def packed(stream: Stream, options: PackOptions, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[BlockBatch]:
    """Batches without end, from the rank's own number `start`; the last of an epoch is filled up from the next."""
    count, number = blocks_per_epoch(stream, options), start * world + rank
    while True:
        places = np.arange(number * options.batch_size, (number + 1) * options.batch_size)
        tokens = np.empty((options.batch_size, options.length + 1), np.int64)
        index = np.empty(options.batch_size, np.int64)
        for epoch in np.unique(places // count).tolist():
            here = places // count == epoch
            index[here], offset = _order(places[here] % count, count, options, epoch)
            for row in np.flatnonzero(here):
                _read(stream, offset + int(index[row]) * options.length, tokens[row])
        yield BlockBatch(torch.from_numpy(tokens), torch.from_numpy(index))
        number += world


def _order(places: np.ndarray, count: int, options: PackOptions, epoch: int) -> tuple[np.ndarray, int]:
    """Which blocks stand at these places of an epoch, and where its first block begins."""
    seed = np.random.SeedSequence((options.seed % 2**64, epoch))
    offset = int(np.random.default_rng(seed.spawn(1)[0]).integers(options.length))
    return permute(places, count, seed.generate_state(ROUNDS, np.uint64)), offset


def _read(stream: Stream, begin: int, row: np.ndarray) -> None:
    """The tokens of the ring from a place on; only these are read."""
    begin %= len(stream)
    found = stream.tokens[begin : begin + len(row)]
    row[: len(found)] = found
    row[len(found) :] = stream.tokens[: len(row) - len(found)]


def windows(stream: Sized, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where to look to score a text: (begin, end, first target that counts) of windows of `length` tokens.

    Each token but the first counts once, behind at least `length` − `stride` others where as many precede it. The last
    window reaches back, so that all are of one length; a text of fewer tokens than that is one window.
    """
    if not 1 <= stride < length:
        raise UserError(f"stride = {stride}: must lie within 1 … {length - 1}, below the window's {length} tokens")
    first, total = 1, len(stream)
    while first < total:
        end = min(total, first - 1 + length if first == 1 else first + stride)
        yield max(0, end - length), end, first
        first = end
