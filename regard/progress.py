"""Progress of long operations, shown on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]


@contextmanager
def shown(message: str) -> Iterator[Progress]:
    """Reports a count as the {} of `message`, on stderr if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn(message.replace("{}", "{task.completed:,.0f}")), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, completed=count)


@contextmanager
def counted(message: str, total: int, quiet: bool = False) -> Iterator[Progress]:
    """A progress bar up to `total`; it is given the number of items done since the last call."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(message, total=total)
        yield lambda done: bar.advance(task, done)


def in_bytes(count: float) -> str:
    """A size with its unit."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
