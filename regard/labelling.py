"""`regard evaluate` of a model that tells labels: how many it tells right, of which labels, and what it mistakes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bar

from regard.errors import UserError
from regard.inputs.files import Record
from regard.inputs.labels import read
from regard.inputs.targets import Labels, known
from regard.recipe import DataOptions, Recipe
from regard.tasks import marks
from regard.tasks.scores import Difference, compare_hits
from regard.tasks.told import Label


class Selection(NamedTuple):
    """Labelled texts, where they come from, and how many were left out for want of a text or a label."""

    name: str
    records: list[Record]
    skipped: int


def select(model: Any, file: str | None, text: str, label: str) -> Selection:
    """The file's samples; without one the test part of the model's recipe, else its validation part."""
    recipe: Recipe | None = model.recipe
    if file:
        data = recipe.data if recipe else DataOptions(text2="text2" if model.network.paired else "")
        data = replace(data, train="", validation="", test=file, text=text or data.text, label=label or data.label)
        recipe = Recipe(task="classify", output="", data=data, origin=str(Path.cwd()))
    if recipe is None:
        raise UserError("this model came without a recipe that names a test part: give a FILE with text and label")
    part = next((part for part in ("test", "validation") if getattr(recipe.data, part)), None)
    if part is None:
        raise UserError("the model's recipe names neither data.test nor data.validation: give a FILE")
    records = list(known(read(recipe.data, part, Path(recipe.origin)), Labels(model.network.labels)))
    full = [record for record in records if record.source.strip() and record.target]
    if not full:
        raise UserError(f"{file or part}: no samples to score")
    return Selection(file or part, full, len(records) - len(full))


def evaluate(
    models: list[Any], chosen: Selection, batch_size: int = 32, truncate: bool = False, quiet: bool = True
) -> dict[str, Any]:
    """Scores of one model with a row a label and its mistakes; of two also the paired test of their accuracies."""
    inputs = [models[0].texts.apart(record.source) for record in chosen.records]
    wanted = [record.target for record in chosen.records]
    with Bar(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("reading", total=len(inputs) * len(models))
        options = {"batch_size": batch_size, "truncate": truncate, "progress": lambda done: bar.advance(task, done)}
        answers: list[list[Label]] = [model.run(inputs, **options) for model in models]
    labels, first = models[0].network.labels, answers[0]
    numbers = {label: number for number, label in enumerate(labels)}
    found = marks.report(
        [numbers[answer.label] for answer in first],
        [numbers[label] for label in wanted],
        [answer.scores[label] for answer, label in zip(first, wanted, strict=True)],
        labels,
    )
    counts = {"samples": len(wanted), "part": chosen.name} | ({"skipped": chosen.skipped} if chosen.skipped else {})
    return counts | found | ({"comparison": _compare(answers, wanted)} if len(models) > 1 else {})


def _compare(answers: list[list[Label]], wanted: list[str]) -> Difference:
    hits = [
        100.0 * np.array([answer.label == label for answer, label in zip(each, wanted, strict=True)], float)
        for each in answers
    ]
    return compare_hits("accuracy", *hits)
