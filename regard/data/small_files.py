"""Reading the small files of a folder that may come from a stranger: configs, tokenizers, templates."""

import errno
import stat
from pathlib import Path

MAX_BYTES = 1 << 28


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. A FIFO or a device, which may never end, and a huge file are an OSError.

    So is a link to another file of the user's, whose content would be part of what is saved and published.
    """
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if path.is_symlink() and not _belongs(path):
        raise OSError(errno.EINVAL, f"a link to {path.resolve()}, outside of the folder: copy the file", str(path))
    if info.st_size > MAX_BYTES:
        raise OSError(errno.EFBIG, f"{info.st_size:,} bytes, over the limit of {MAX_BYTES:,}", str(path))
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The same as UTF-8 text, with every line ending as \\n."""
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _belongs(link: Path) -> bool:
    """Whether a link leads to a file of its folder, of the same name elsewhere, or of the Hugging Face cache.

    The cache has snapshots/<commit>/config.json → ../../blobs/<hash>.
    """
    target = link.resolve()
    folder = link.parent.resolve()
    return target.is_relative_to(folder) or target.name == link.name or target.parent == folder.parent.parent / "blobs"
