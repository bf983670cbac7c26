"""The parts of a data set: files of their own, or fractions held out of the training file."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from regard.data.files import find
from regard.errors import UserError, nearest

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

PARTS = ("train", "validation", "test")


def number_of(value: str) -> int:
    """64 bits of a value's hash, the same everywhere."""
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8])


class Grouped(Protocol):
    """What a part is held out from: equal groups lie in the same part."""

    @property
    def group(self) -> str: ...


Of = TypeVar("Of", bound=Grouped)


def held(records: Iterable[Of], data: "DataOptions", part: str) -> Iterator[Of]:
    """Those that belong to the part: all of them where it has a file of its own, else as their groups fall."""
    own, shares = own_file(data, part), fractions(data)
    for record in records:
        if own or part_of(record.group, *shares) == part:
            yield record


def part_of(value: str, validation: float, test: float) -> str:
    """The part a value belongs to, by its hash alone: the order of a file and the other samples do not matter."""
    place = number_of(value) / 2**64
    # One from below, one from above: changing one fraction moves nothing in the other.
    return "validation" if place < validation else "test" if place >= 1 - test else "train"


def fractions(data: "DataOptions") -> tuple[float, float]:
    """What is held out of `train` for validation and for test; 0 where a part has a file of its own, or none."""
    validation, test = (part if isinstance(part, float) else 0.0 for part in (data.validation, data.test))
    if validation + test >= 1:
        raise UserError(f"data.validation = {validation} and data.test = {test} leave nothing to train on")
    return validation, test


def own_file(data: "DataOptions", part: str) -> bool:
    """Whether a held-out part has a file of its own, which is taken whole."""
    return isinstance(getattr(data, part), str) and part != "train"


def file_of(data: "DataOptions", part: str, beside: Path | None = None) -> Path:
    """Where a part's samples stand; a fraction stands in the train file."""
    if part not in PARTS:
        raise UserError(f"unknown part '{part}'{nearest(part, PARTS)}")
    name = getattr(data, part)
    name = data.train if isinstance(name, float) else name
    if not isinstance(name, str) or not name:
        raise UserError(f"data.{part} names no file")
    return find(name, beside)
