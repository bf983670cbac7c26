"""Samples that occur in two splits (data leakage), found by 64-bit digests: 8 bytes of memory a sample."""

import hashlib
from collections.abc import Iterable

import numpy as np


def digests(samples: Iterable[str | bytes]) -> np.ndarray:
    """A 64-bit digest of each sample."""
    encoded = (sample.encode() if isinstance(sample, str) else sample for sample in samples)
    return np.fromiter((int.from_bytes(hashlib.blake2b(each, digest_size=8).digest()) for each in encoded), np.uint64)


def duplicates(train: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each digest of `other`, whether `train` has it too."""
    if not len(train):
        return np.zeros(len(other), bool)
    train = np.sort(train)
    index = np.minimum(np.searchsorted(train, other), len(train) - 1)
    return train[index] == other
