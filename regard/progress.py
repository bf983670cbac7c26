"""How far a long work is, on a terminal that somebody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]


@contextmanager
def shown(told: str, progress: Progress | None = None) -> Iterator[Progress]:
    """Tells how far it is: to the caller's function, else where stderr is a terminal; `told` has a {} for the count."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda _: None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn(told.replace("{}", "{task.completed:,.0f}")), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, completed=count)


@contextmanager
def counted(told: str, total: int, quiet: bool = False) -> Iterator[Progress]:
    """Tells how much is done of a number that is known; it hears how many more are."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(told, total=total)
        yield lambda done: bar.advance(task, done)


def in_bytes(count: float) -> str:
    """A size as people say it."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
