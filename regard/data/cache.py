"""Prepared data on disk: written aside, put in place when whole, thrown away when damaged; and what became of it."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, TypeVar

STALE = 24 * 3600  # seconds after which an unfinished folder is surely a killed run's


@dataclass
class Skip:
    """How many samples one reason cost, and where the first stood."""

    count: int
    first: str


@dataclass
class Report:
    """What became of the samples: nothing disappears silently."""

    read: int = 0
    kept: int = 0
    skipped: dict[str, Skip] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # how the files were taken where they leave a choice
    unit: str = "samples"

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        """From what `asdict` made of one."""
        skipped = {reason: Skip(**skip) for reason, skip in facts["skipped"].items()}
        return cls(**{**facts, "skipped": skipped})

    def skip(self, reason: str, place: str) -> None:
        self.skipped.setdefault(reason, Skip(0, place)).count += 1

    def __str__(self) -> str:
        told = [f"{self.read} {self.unit} read, {self.kept} kept"]
        told += [f"{skip.count} skipped: {reason} (first: {skip.first})" for reason, skip in self.skipped.items()]
        return "; ".join([*told, *self.notes])


class Prepared(Protocol):
    """What a folder of prepared data opens as."""

    @property
    def whole(self) -> bool: ...


Found = TypeVar("Found", bound=Prepared)


def cache_path(cache: Path, parts: Sequence[str]) -> Path:
    """The folder of what all these strings decide."""
    return cache / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def open_cached(folder: Path, kind: Callable[[Path], Found]) -> Found | None:
    """What was prepared in a folder; a damaged one is thrown away."""
    if not folder.exists():
        return None
    try:
        found = kind(folder)
    except (OSError, ValueError, KeyError, TypeError):  # no file, an empty or uneven one, no JSON, other JSON
        found = None
    if found is None or not found.whole:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return found


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when all went well, and nothing when not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    place = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        yield place
        try:
            place.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _sweep(cache: Path) -> None:
    for place in cache.glob(".unfinished-*"):
        if place.exists() and time.time() - place.stat().st_mtime > STALE:
            shutil.rmtree(place, ignore_errors=True)


def settle(file: BinaryIO) -> None:
    """Puts a file on the disk, so that no later name can stand over an empty one."""
    file.flush()
    os.fsync(file.fileno())


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    with path.open("wb") as file:
        file.write(json.dumps(facts, indent=2, ensure_ascii=False).encode())
        settle(file)


def read_facts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def smallest_uint(size: int) -> str:
    """The type that holds the ids of a vocabulary of this size in the fewest bytes."""
    return "uint16" if size <= 1 << 16 else "uint32"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Where prepared data lies: REGARD_CACHE, else the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")
