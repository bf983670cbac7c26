"""Reading the small files of a folder that may come from a stranger: configs, tokenizers, templates."""

import errno
import stat
from pathlib import Path

MAX_SETTINGS = 1 << 24  # bytes of a config

MAX_TOKENIZER = 1 << 28  # bytes of a tokenizer or of a vocabulary


def read_bytes(path: Path, limit: int = MAX_SETTINGS) -> bytes:
    """The content of a regular file. A FIFO or a device, which may never end, and a huge file are an OSError.

    So is a link to another file of the user's, whose content would be part of what is saved and published.
    """
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if path.is_symlink() and not _belongs(path):
        problem = f"a link to {path.resolve()}, outside of the folder and of the one that contains it: copy the file"
        raise OSError(errno.EINVAL, problem, str(path))
    if info.st_size > limit:
        raise OSError(errno.EFBIG, f"{info.st_size:,} bytes, over the limit of {limit:,}", str(path))
    return path.read_bytes()


def read_text(path: Path, limit: int = MAX_SETTINGS) -> str:
    """The same as UTF-8 text, with every line ending as \\n."""
    return read_bytes(path, limit).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _belongs(link: Path) -> bool:
    """Whether a link leads to a file below the folder that contains its folder, and not to a hidden one such as .netrc.

    In the Hugging Face cache it is snapshots/<commit>/1_Pooling/config.json → ../../../blobs/<hash>, at any depth.
    """
    target = link.resolve()
    folder = link.parent.resolve()
    if any(parent.name == "snapshots" and target.parent == parent.parent / "blobs" for parent in folder.parents):
        return True
    if target.is_relative_to(folder):
        return True
    if not target.is_relative_to(folder.parent):
        return False
    return not any(name.startswith(".") for name in target.relative_to(folder.parent).parts)
