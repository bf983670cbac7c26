"""`regard evaluate` of a model that tells labels: how many it tells right, of which labels, and what it mistakes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.files import Record
from regard.data.targets import targets_of, validated
from regard.errors import UserError
from regard.explorer.charts import heatmap
from regard.metrics import classification as marks
from regard.metrics import correlation
from regard.metrics.bootstrap import paired_test
from regard.progress import counted
from regard.tasks.classify.answers import LIKELY, Number, Several, Told
from regard.tasks.classify.dataset import split_pair
from regard.tasks.classify.files import read
from regard.tasks.classify.options import ClassifyData
from regard.tasks.scoring import chosen as part_of
from regard.tasks.scoring import columns, lines_of, moved

MOVED = "data.train is not the file that was trained on: some of what is scored here may have been trained on"


class Selection(NamedTuple):
    """Labelled texts, where they come from, and how many were left out for want of a text or a label."""

    name: str
    records: list[Record]
    skipped: int
    inputs: list[str | tuple[str, ...]]  # texts or pairs of them, as a model is asked
    moved: bool  # whether some may have been trained on


def select(
    model: Any, file: str | None, text: str, label: str, text_pair: str = "", named: tuple[str, ...] = ()
) -> Selection:
    """The file's samples; without one the test part of the model's recipe, else its validation part."""
    network = model.network
    if text_pair and model.recipe and not model.recipe.data.text_pair:
        raise UserError(f"--text-pair {text_pair}: this model was trained on single texts")
    other = text_pair or ("text_pair" if network.paired and model.recipe is None else "")
    roles = columns(model.recipe, text=text, text_pair=other, label=label)
    how = {"problem_type": network.problem_type, "stratify": False, "split_by": "source"}  # all of a file is scored
    how |= {"columns": named} if named else {}
    recipe, part = part_of(model.recipe, "classify", file, " with text and label", **roles, **how)
    targets = targets_of(network.problem_type, network.labels)
    records = list(validated(read(ClassifyData.of(recipe), part, Path(recipe.origin)), targets))
    full = [record for record in records if record.source.strip() and record.target]
    if not full:
        raise UserError(f"{file or part}: no samples to score")
    inputs = [split_pair(record.source, bool(ClassifyData.of(recipe).text_pair)) for record in full]
    mixed = file is None and moved(model, part)
    return Selection(file or part, full, len(records) - len(full), inputs, mixed)


def evaluate(
    models: list[Any], chosen: Selection, batch_size: int = 32, truncate: bool = False, quiet: bool = True
) -> dict[str, Any]:
    """Scores of one model with a row a label and its mistakes; of two also the paired test of one of them."""
    if len({model.network.problem_type for model in models}) > 1:
        raise UserError("--compare: one of the models tells one label a text and the other several, or a number")
    inputs = chosen.inputs
    wanted = [record.target for record in chosen.records]
    with counted("reading", len(inputs) * len(models), quiet) as progress:
        options = {"batch_size": batch_size, "truncate": truncate, "progress": progress}
        answers: list[list[Told]] = [model.run(inputs, **options) for model in models]
    network = models[0].network
    name, report, mark = REPORTS[network.problem_type]
    counts = {"samples": len(wanted), "part": chosen.name} | ({"skipped": chosen.skipped} if chosen.skipped else {})
    counts |= {"note": MOVED} if chosen.moved else {}
    counts |= {} if network.problem_type == "regression" else {"probabilities": "uncalibrated"}
    found = counts | report(answers[0], wanted, network.labels)
    told = [[_said(answer) for answer in each] for each in answers]
    right = [WRITTEN[network.problem_type](each) for each in wanted]
    sure = {} if network.problem_type == "regression" else {"scores": [each.scores for each in answers[0]]}  # type: ignore[union-attr]
    found |= lines_of([record.location for record in chosen.records], inputs, right, told, **sure)
    if len(models) == 1:
        return found
    marks_of = [np.array([mark(a, w) for a, w in zip(each, wanted, strict=True)], float) for each in answers]
    return found | {"comparison": paired_test(name, *marks_of).to_dict(higher_is_better=name != "squared_error")}


WRITTEN: dict[str, Callable[[str], Any]] = {
    "single_label": str,
    "multi_label": json.loads,
    "regression": float,
}  # labels, by their kind


def _said(answer: Told) -> str | tuple[str, ...] | float:
    """An answer as a label of its kind is written."""
    if isinstance(answer, Several):
        return answer.labels
    return answer.value if isinstance(answer, Number) else answer.label


def _one(answers: list[Any], wanted: list[str], labels: Sequence[str]) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(labels)}
    return marks.single_label_report(
        [numbers[answer.label] for answer in answers],
        [numbers[label] for label in wanted],
        [answer.scores[label] for answer, label in zip(answers, wanted, strict=True)],
        labels,
    )


def _several(answers: list[Any], wanted: list[str], labels: Sequence[str]) -> dict[str, Any]:
    chances = np.array([[answer.scores[label] for label in labels] for answer in answers])
    held = np.array([[label in json.loads(each) for label in labels] for each in wanted])
    return marks.multi_label_report(chances, held, labels, LIKELY)


def _numbers(answers: list[Any], wanted: list[str], labels: Sequence[str]) -> dict[str, Any]:
    values = [float(each) for each in wanted]
    found = correlation.report([answer.value for answer in answers], values)
    return {"always_the_mean": float(np.var(values)), "scores": found}


REPORTS: dict[str, tuple[str, Callable[..., dict[str, Any]], Callable[[Any, str], float]]] = {
    "single_label": ("accuracy", _one, lambda answer, wanted: 100.0 * (answer.label == wanted)),
    "multi_label": ("exact", _several, lambda answer, wanted: 100.0 * ({*answer.labels} == {*json.loads(wanted)})),
    "regression": ("squared_error", _numbers, lambda answer, wanted: (answer.value - float(wanted)) ** 2),
}  # by kind: what two models are compared by, all figures, and that one of a single answer


def draw_confusions(path: Path, name: str, found: dict[str, Any]) -> None:
    """Which label (row) was called which (column), in counts, shaded by their share of the row."""
    if "called" not in found:
        raise UserError("--plot draws which label was called which: for a model that tells one label a text")
    counts = [list(row.values()) for row in found["called"].values()]
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    labels, title = list(found["called"]), f"{name}: labels (rows) and what they were called (columns)"
    heatmap(path, title, labels, labels, shares, [[str(count) for count in row] for row in counts])
