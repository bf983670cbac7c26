"""Files in .zip archives, by names such as photos.zip/cat.jpg."""

import lzma
import re
import zipfile
import zlib
from functools import lru_cache
from os.path import isfile  # False for names that no file can have, where `Path.is_file` raises
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError

ARCHIVED = re.compile(r"(.+?\.zip)/(.+)", re.IGNORECASE)

MAX_BYTES = 1 << 28  # of a file in an archive, whatever size its header states

ZIP_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError),  # RuntimeError: encrypted, or of an unknown compression
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)  # that reading a damaged archive may raise


class Archived(NamedTuple):
    """A file in an archive."""

    archive: Path
    member: str

    def __str__(self) -> str:
        return f"{self.archive}/{self.member}"

    def exists(self) -> bool:
        return self.member in _opened(self.archive).NameToInfo

    def checksum(self) -> str:
        """Equal for files with equal content, with few exceptions; known without reading them."""
        info = _opened(self.archive).getinfo(self.member)
        return f"{info.CRC:08x} {info.file_size}"

    def read(self) -> bytes:
        """Its content."""
        archive = _opened(self.archive)
        try:
            with archive.open(self.member) as file:
                content = file.read(MAX_BYTES + 1)
        except KeyError:
            raise UserError(f"{self}: the archive has no such file") from None
        except ZIP_ERRORS as error:
            raise UserError(f"{self}: cannot be read ({error})") from None
        if len(content) > MAX_BYTES:
            raise UserError(f"{self}: more than {MAX_BYTES:,} bytes, the limit for a file in an archive")
        return content


def archived(name: str) -> Archived | None:
    """The file in an archive that has this name; None for other names."""
    match = ARCHIVED.fullmatch(name)
    return Archived(Path(match[1]), match[2]) if match and isfile(match[1]) else None


def is_archive(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def members(path: Path) -> list[str]:
    """The names of all files in an archive, in order."""
    return sorted(name for name, info in _opened(path).NameToInfo.items() if not info.is_dir())


def _opened(path: Path) -> zipfile.ZipFile:
    """An archive, which stays open."""
    return _version(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _version(path: Path, modified: int) -> zipfile.ZipFile:
    """`modified` is the time of an archive, so that a changed one is opened again."""
    try:
        return zipfile.ZipFile(path)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a readable .zip file ({error})") from None
