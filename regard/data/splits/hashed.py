"""The splits of a dataset (files, or fractions held out of the training file by a hash), and samples in two of them."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from regard.data.files import find
from regard.data.splits import SPLITS
from regard.errors import UserError, nearest

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions


def hash64(value: str) -> int:
    """64 bits of a value's hash, the same on every machine."""
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8])


class Grouped(Protocol):
    """A sample; samples of equal groups are in the same split."""

    @property
    def group(self) -> str: ...


G = TypeVar("G", bound=Grouped)


def held(records: Iterable[G], data: "DataOptions", split: str) -> Iterator[G]:
    """The records of a split: all of them if it has a file of its own, else by the hash of their groups."""
    if own_file(data, split):
        return iter(records)
    shares = fractions(data)
    return (record for record in records if split_of(record.group, *shares) == split)


def split_of(value: str, validation: float, test: float) -> str:
    """The split of a value, by its hash alone: the order of a file and the other samples do not matter."""
    position = hash64(value) / 2**64
    # One from below, one from above: changing one fraction moves nothing in the other.
    return "validation" if position < validation else "test" if position >= 1 - test else "train"


def fractions(data: "DataOptions") -> tuple[float, float]:
    """The fractions of `train` held out for validation and test; 0 if a split has a file of its own, or is missing."""
    validation, test = (value if isinstance(value, float) else 0.0 for value in (data.validation, data.test))
    if validation + test >= 1:
        raise UserError(f"data.validation = {validation} and data.test = {test} leave nothing to train on; lower them")
    return validation, test


def own_file(data: "DataOptions", split: str) -> bool:
    """Whether a held-out split has a file, or synthetic samples, of its own, which are used completely."""
    return not isinstance(getattr(data, split), float | dict) and split != "train"


def file_of(data: "DataOptions", split: str, base_dir: Path | None = None, folders_allowed: bool = False) -> Path:
    """The file of a split; what is held out of train is in the training file."""
    if split not in SPLITS:
        raise UserError(f"unknown split '{split}'{nearest(split, SPLITS)}")
    name = getattr(data, split)
    name = data.train if isinstance(name, float | dict) else name
    if not isinstance(name, str) or not name:
        raise UserError(f"data.{split} is not set: expected a file")
    return find(name, base_dir, folders_allowed)


# ── leakage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def digests(samples: Iterable[str | bytes]) -> np.ndarray:
    """A 64-bit digest of each sample, 8 bytes of memory."""
    encoded = (sample.encode() if isinstance(sample, str) else sample for sample in samples)
    return np.fromiter((int.from_bytes(hashlib.blake2b(each, digest_size=8).digest()) for each in encoded), np.uint64)


def duplicates(train: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each digest of `other`, whether `train` has it too: the sample occurs in both splits."""
    if not len(train):
        return np.zeros(len(other), bool)
    train = np.sort(train)  # np.isin takes several times as long
    index = np.minimum(np.searchsorted(train, other), len(train) - 1)
    return train[index] == other
