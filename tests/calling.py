"""The command line in a test's own process, and files for it to read."""

from collections.abc import Callable
from pathlib import Path

Call = Callable[..., tuple[int, str, str]]  # words of the command line → exit code, stdout, stderr


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
