"""Which split or file is scored, and the predictions written as JSON lines."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.cli.output import document
from regard.config.recipe import Recipe
from regard.data.cache import hash_file
from regard.data.files import expand
from regard.data.splits.hashed import file_of, own_file
from regard.data.splits.substrings import CONTAINING
from regard.errors import UserError
from regard.tasks.registry import options_of

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


def chosen(recipe: Recipe | None, task: str, file: str | None, wanted: str, **data: Any) -> tuple[Recipe, str]:
    """A recipe, and its part to score: the file, read as the model's recipe says with `data` over it; else the test
    part of that recipe, else its validation part. What is `wanted` of a file is told where there is nothing."""
    if file:
        known = recipe or Recipe(task=task, output="", data=options_of(task).data())
        whole = {"train": "", "validation": "", "test": file, "synthetic": ""}
        return replace(known, data=replace(known.data, **whole, **data), origin=str(Path.cwd())), "test"
    if recipe is None:
        raise UserError(f"this model came without a recipe that names a test part: give a FILE{wanted}")
    part = next((part for part in ("test", "validation") if getattr(recipe.data, part)), None)
    if part is None:
        raise UserError(f"the model's recipe names neither data.test nor data.validation: give a FILE{wanted}")
    return recipe, part


def moved(model: Any, part: str) -> bool:
    """Whether the part was held out of a file that has changed since, in a way by which samples change their part."""
    data, facts = model.recipe.data, model.folder.parent / "environment.json"
    if (
        own_file(data, part)
        or not (getattr(data, "stratify", False) or data.split_by == CONTAINING)
        or not facts.is_file()
    ):
        return False
    known = json.loads(facts.read_text(encoding="utf-8")).get("data", {})
    files = expand(file_of(data, "train", Path(model.recipe.origin)))
    return any(known.get(f"train/{name or path.name}", "") not in ("", hash_file(path)) for name, path in files.items())


def columns(recipe: Recipe | None, **named: str) -> dict[str, str]:
    """Names of columns as they are given; where one is not, the recipe's."""
    data = recipe.data if recipe else None
    return {role: name or getattr(data, role, "") for role, name in named.items()}
