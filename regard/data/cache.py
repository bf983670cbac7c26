"""Prepared data in the cache folder: its key, atomic writing, opening, and a report of skipped samples."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from regard.data.splits import SPLITS

if TYPE_CHECKING:
    from regard.config.options import DataOptions

FORMAT = "regard dataset 1"  # part of every key: increase it when the files of data/ragged.py change

STALE = 24 * 3600  # seconds after which an unfinished folder must belong to a killed run


Facts = dict[str, Any]  # of a JSON file


@dataclass
class Skip:
    """How many samples were skipped for one reason, and the location of the first."""

    count: int
    first: str


@dataclass
class Report:
    """Samples read, kept, and skipped with the reason: nothing disappears silently."""

    read: int = 0
    kept: int = 0
    truncated: int = 0  # of those kept
    skipped: dict[str, Skip] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # how ambiguous files were interpreted, and sizes
    unit: str = "samples"

    @classmethod
    def of(cls, facts: Facts) -> Self:
        """The inverse of `asdict`."""
        skipped = {reason: Skip(**skip) for reason, skip in facts["skipped"].items()}
        return cls(**{**facts, "skipped": skipped})

    def skip(self, reason: str, location: str) -> None:
        self.skipped.setdefault(reason, Skip(0, location)).count += 1

    def __str__(self) -> str:
        counts = [f"{self.read} {self.unit} read, {self.kept} kept"]
        counts += [f"{self.truncated} truncated"] if self.truncated else []
        counts += [f"{skip.count} skipped: {reason} (first: {skip.first})" for reason, skip in self.skipped.items()]
        return "; ".join([*counts, *self.notes])


def cache_path(cache: Path, contents: Sequence[str]) -> Path:
    """The folder of a dataset; `contents` are all that determines it."""
    return cache / hashlib.sha256("\0".join([FORMAT, *contents]).encode()).hexdigest()[:32]


def options_key(options: "DataOptions", split: str, ignore: Collection[str] = ()) -> str:
    """The part of a cache key that comes from a [data] table: all its fields, so that none can be forgotten.

    Names of files are left out, because the files' hashes are part of a key too; so are the counts of other splits, and
    the fields that a caller lists because they do not change what it prepares.
    """
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    for name in SPLITS:
        value = values.pop(name, None)
        if isinstance(value, float | dict) or (name == split and not isinstance(value, str)):
            values[name] = value
    kept = {name: value for name, value in values.items() if name not in ignore}
    return json.dumps([split, kept], sort_keys=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` on success, and removed on failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.parent.glob(".unfinished-*"):
        if unfinished.exists() and time.time() - unfinished.stat().st_mtime > STALE:
            shutil.rmtree(unfinished, ignore_errors=True)
    tmp_folder = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        yield tmp_folder
        try:
            tmp_folder.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster, with the same content
                raise
    except OSError as error:
        error.filename = error.filename or str(folder)  # write() does not know it
        raise
    finally:
        shutil.rmtree(tmp_folder, ignore_errors=True)


def smallest_uint(size: int) -> str:
    """The smallest type that holds the ids of a vocabulary of this size."""
    return "uint16" if size <= 1 << 16 else "uint32"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(path: Path) -> str:
    """The hash of a file, read once in a process unless it changes."""
    info = path.stat()
    return _content_hash(path, info.st_mtime_ns, info.st_size)


@lru_cache(maxsize=1 << 20)
def _content_hash(path: Path, modified: int, size: int) -> str:
    return hash_file(path)


def hash_together(files: Mapping[str, Path]) -> str:
    """One hash of many files, by their names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{content_hash(files[name])}\n".encode())
    return total.hexdigest()


def cache_folder() -> Path:
    """The folder of prepared data: REGARD_CACHE, else the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")
