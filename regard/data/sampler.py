"""Which samples form which batch: an order that is a pure function of (seed, batch index).

    epoch e:   Feistel permutation of 0 … n−1, keyed by (seed, e)
               ├── window of 8192 samples, sorted by length ──▶ split by tokens ──▶ batches shuffled
               ├── window …
    rank r of world takes batches k·world + r of the endless stream of epochs.

Shapes: batch, length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Protocol

import numpy as np

from regard.errors import UserError

ROUNDS = 6  # of the Feistel network; 4 are proven enough for a random permutation (Luby & Rackoff 1988)


@dataclass(frozen=True)
class BatchOptions:
    """The size of a batch, in tokens with padding or in samples, and the seed of the order."""

    batch_tokens: int = 0
    batch_size: int = 0
    seed: int = 0
    window: int = 8192  # samples among which lengths are sorted

    def __post_init__(self) -> None:
        if (self.batch_tokens > 0) == (self.batch_size > 0):
            raise UserError(
                f"batch_tokens = {self.batch_tokens}, batch_size = {self.batch_size}: one of the two must be positive"
            )
        if self.window < 1:
            raise UserError(f"window = {self.window}: must be at least 1")


def _mix(values: np.ndarray) -> np.ndarray:
    """Mixes the bits of 64-bit integers (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(positions: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """The samples at these positions of a keyed permutation of 0 … size−1, in memory proportional to the positions.

    A Feistel network is a bijection of the next power of four; a value beyond `size` is permuted again (cycle walking).
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        values[outside] = (left << half) | right
        outside = values >= size
    return values.astype(np.int64)


class Measured(Protocol):
    """Samples with known lengths: all that their order depends on."""

    def __len__(self) -> int: ...

    @property
    def source_lengths(self) -> np.ndarray: ...

    @property
    def target_lengths(self) -> np.ndarray: ...


class BatchOrder:
    """Which samples form batch k, for a dataset and options; it keeps only the batch count of each epoch."""

    def __init__(self, dataset: Measured, options: BatchOptions):
        self.dataset = dataset
        self.options = options
        self.windows = -(-len(dataset) // options.window)
        self._counts: list[int] = []  # batches of epoch 0, 1, …

    def batches(self, epoch: int) -> int:
        """How many batches an epoch has; split by tokens it differs a little from epoch to epoch."""
        while len(self._counts) <= epoch:
            done = len(self._counts)
            self._counts.append(sum(self._count(done, window) for window in range(self.windows)))
        return self._counts[epoch]

    def locate(self, batch: int) -> tuple[int, int]:
        """The epoch of a batch of the endless stream, and its index in that epoch."""
        epoch = 0
        while batch >= self.batches(epoch):
            batch -= self.batches(epoch)
            epoch += 1
        return epoch, batch

    def samples(self, start: int) -> Iterator[tuple[int, np.ndarray]]:
        """Epoch and samples of batch start, start + 1, … without end; windows before it are only counted."""
        epoch, skip = self.locate(start)
        while True:
            for window in range(self.windows):
                if skip and skip >= (count := self._count(epoch, window)):
                    skip -= count
                    continue
                yield from ((epoch, samples) for samples in self._window(epoch, window)[skip:])
                skip = 0
            epoch += 1

    def _window_samples(self, epoch: int, window: int) -> np.ndarray:
        size, total = self.options.window, len(self.dataset)
        positions = np.arange(window * size, min((window + 1) * size, total))
        keys = np.random.SeedSequence((self.options.seed % 2**64, epoch)).generate_state(ROUNDS, np.uint64)
        return permute(positions, total, keys)

    def _widths(self, samples: np.ndarray) -> np.ndarray:
        """The width that a sample requires of its batch: its longer side and one of begin or end."""
        longer = np.maximum(self.dataset.source_lengths[samples], self.dataset.target_lengths[samples])
        return 1 + longer.astype(np.int64)

    def _borders(self, widths: np.ndarray) -> list[int]:
        """Where batches begin and end among sorted widths: each as large as possible, at least one sample."""
        borders = [0]
        while (start := borders[-1]) < len(widths):
            most = self.options.batch_size or self.options.batch_tokens // int(widths[start])
            cost = widths[start : start + most] * np.arange(1, min(most, len(widths) - start) + 1)
            fits = np.searchsorted(cost, self.options.batch_tokens, "right") if not self.options.batch_size else most
            borders.append(min(start + max(1, int(fits)), len(widths)))
        return borders

    def _count(self, epoch: int, window: int) -> int:
        if self.options.batch_size:
            size = min(self.options.window, len(self.dataset) - window * self.options.window)
            return -(-size // self.options.batch_size)
        return len(self._borders(np.sort(self._widths(self._window_samples(epoch, window))))) - 1

    def _window(self, epoch: int, window: int) -> list[np.ndarray]:
        """A window's batches: neighbours in length together, equal lengths in random order, batches in random order."""
        rng = np.random.default_rng((self.options.seed % 2**64, epoch, window))
        samples = self._window_samples(epoch, window)
        widths = self._widths(samples)
        order = np.lexsort((rng.random(len(samples)), self.dataset.source_lengths[samples], widths))
        borders = self._borders(widths[order])
        batches = [samples[order[start:end]] for start, end in pairwise(borders)]
        return [batches[index] for index in rng.permutation(len(batches))]


@lru_cache(maxsize=8)
def batch_order(dataset: Measured, options: BatchOptions) -> BatchOrder:
    return BatchOrder(dataset, options)


def batches_per_epoch(dataset: Measured, options: BatchOptions) -> int:
    """The batches of the first epoch, of all ranks together."""
    return batch_order(dataset, options).batches(0)


def epochs(dataset: Measured, options: BatchOptions, batches: int) -> float:
    """How many epochs the first `batches` batches of all ranks together are."""
    order = batch_order(dataset, options)
    epoch, batch = order.locate(batches)
    return epoch + batch / order.batches(epoch)


def epoch_shares(
    dataset: Measured, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[tuple[int, list[int]]]:
    """Epoch and samples of a process's own batches without end, from its `start`-th: its k-th is k·world + rank."""
    for epoch, samples in islice(batch_order(dataset, options).samples(start * world), rank, None, world):
        yield epoch, samples.tolist()
