"""`regard evaluate --predictions`: what was asked, wanted and told of every sample, a JSON line each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.report import document

KEY = "predictions"  # under it a scorer hands them over, beside its figures


def lines_of(
    places: Sequence[str | int],
    inputs: Sequence[Any],
    wanted: Sequence[Any],
    told: Sequence[Sequence[Any]],
    **more: Sequence[Any],
) -> dict[str, Iterator[dict[str, Any]]]:
    """Of one model (`told`), or of two (`second`), with what `more` there is; made only when they are asked for."""
    names = ("place", "input", "wanted", *("told", "second")[: len(told)], *more)
    lines = zip(places, inputs, wanted, *told, *more.values(), strict=True)
    return {KEY: (dict(zip(names, line, strict=True)) for line in lines)}


def write(path: Path, lines: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{document(line, indent=None)}\n" for line in lines)
