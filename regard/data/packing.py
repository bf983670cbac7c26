"""A text → batches of packed blocks, in an order that is a pure function of (seed, batch index).

    epoch e:   the text as a ring, split into blocks from an offset that (seed, e) determines
               block i   tokens offset + i·length … offset + (i + 1)·length, both ends included
               a Feistel permutation of the blocks, keyed by (seed, e)
    batch k:   blocks k·size … (k + 1)·size of the endless stream of epochs
    rank r of world takes batches k·world + r.

Neighbours share one token, the last of one and the first of the next, so that each token is a target once an epoch. The
fewer than `length` tokens that fill no block are left out; which they are changes with the offset. One block of the
ring continues from the text's last token to its first.

Shapes: batch, length.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.sampler import ROUNDS, permute
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.layers.pytree import to_device


class BlockBatch(NamedTuple):
    """Blocks of a text: all tokens but the last are inputs, all but the first are targets."""

    tokens: Tensor  # (batch, length + 1)
    indices: Tensor  # (batch): the blocks' indices in their epoch

    def to(self, device: torch.device | str) -> "BlockBatch":
        return to_device(self, device)


@dataclass(frozen=True)
class PackOptions:
    """How many inputs a block has, how many blocks a batch has, and the seed of the order."""

    length: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")


def blocks_per_epoch(stream: Sized, options: PackOptions) -> int:
    if len(stream) < options.length + 1:
        raise UserError(
            f"text too short: {len(stream)} tokens, but one block needs {options.length + 1} "
            f"(data.max_length = {options.length}, plus one target); lower data.max_length or add text"
        )
    return len(stream) // options.length


def batches_per_epoch(stream: Sized, options: PackOptions) -> int:
    """The batches, of all ranks together, in which each block occurs at least once."""
    return -(-blocks_per_epoch(stream, options) // options.batch_size)


def epochs(stream: Sized, options: PackOptions, batches: int) -> float:
    """How many epochs the first `batches` batches of all ranks together are."""
    return batches * options.batch_size / blocks_per_epoch(stream, options)


def packed(
    stream: TokenStream, options: PackOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[BlockBatch]:
    """Batches without end, from the rank's own batch `start`; the last of an epoch is filled up from the next."""
    blocks = blocks_per_epoch(stream, options)
    for batch in count(start * world + rank, world):
        positions = np.arange(batch * options.batch_size, (batch + 1) * options.batch_size)
        tokens = np.empty((options.batch_size, options.length + 1), np.int64)
        index = np.empty(options.batch_size, np.int64)
        for epoch in np.unique(positions // blocks).tolist():
            here = positions // blocks == epoch
            seed = np.random.SeedSequence((options.seed % 2**64, epoch))
            offset = int(np.random.default_rng(seed.spawn(1)[0]).integers(options.length))
            index[here] = permute(positions[here] % blocks, blocks, seed.generate_state(ROUNDS, np.uint64))
            for row in np.flatnonzero(here):
                begin = (offset + int(index[row]) * options.length) % len(stream)
                block = stream.tokens[begin : begin + options.length + 1]  # only these are read
                tokens[row, : len(block)] = block
                tokens[row, len(block) :] = stream.tokens[: options.length + 1 - len(block)]  # the ring closes
        yield BlockBatch(torch.from_numpy(tokens), torch.from_numpy(index))


def windows(stream: Sized, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """The windows of `length` tokens that score a text: (begin, end, first target that counts).

    Each token but the first counts once, with at least `length` − `stride` others before it if as many precede it. The
    last window reaches back, so that all have one length; a shorter text is one window.
    """
    if not 1 <= stride < length:
        raise UserError(f"stride = {stride}: must be between 1 and {length - 1}, below the window of {length} tokens")
    first = 1
    while first < len(stream):
        end = min(len(stream), first - 1 + length if first == 1 else first + stride)
        yield max(0, end - length), end, first
        first = end
