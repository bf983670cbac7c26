"""Reading the small files of a folder that may come from a stranger: configs, tokenizers, templates."""

import errno
import stat
from pathlib import Path

MAX_BYTES = 1 << 28


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. A FIFO or a device, which may never end, and a huge file are an OSError."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if info.st_size > MAX_BYTES:
        raise OSError(errno.EFBIG, f"{info.st_size:,} bytes, over the limit of {MAX_BYTES:,}", str(path))
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The same as UTF-8 text, with every line ending as \\n."""
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
