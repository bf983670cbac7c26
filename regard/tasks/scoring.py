"""What `regard evaluate` asks of a task and gets: a request, an evaluation, and the split or file that is scored."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from regard.config.recipe import Recipe
from regard.data.files import hash_files
from regard.data.splits.hashed import file_of, own_file
from regard.data.splits.substrings import CONTAINING
from regard.errors import UserError
from regard.tasks.predictor import LoadedModel
from regard.tasks.registry import options_of


@dataclass(frozen=True)
class EvaluationRequest:
    """The file to score, if not a split of the recipe, and the specified options by name."""

    file: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, Any] = field(default_factory=dict)  # options of generation
    names: Sequence[str] = ()  # of the models
    batch_size: int = 32
    quiet: bool = True

    def get(self, name: str, default: Any = "") -> Any:
        return self.options.get(name, default)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names of a file without a header."""
        return tuple(name.strip() for name in self.get("columns").split(",")) if self.get("columns") else ()

    def allow(self, description: str, *names: str) -> None:
        """Reject options that the task does not have."""
        comparing = ["compare"] if len(self.names) > 1 else []
        for name in (*self.options, *self.decode, *comparing):
            if name not in names:
                raise UserError(f"--{name.replace('_', '-')} is not an option of the evaluation of {description}")


class LineChart(NamedTuple):
    """Lines of (x, y) points by name, with half-widths of intervals where they are known."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, tuple[list[tuple[float, float]], list[float]]]


class HeatMap(NamedTuple):
    """A matrix with labelled rows and columns, shaded by `shares`, with a text in each cell."""

    title: str
    labels: list[str]
    shares: list[list[float]]
    texts: list[list[str]]


@dataclass
class Evaluation:
    """Metrics and facts as `--json` prints them; the rows of `--predictions`; and what `--plot` draws."""

    results: dict[str, Any]
    predictions: Iterator[dict[str, Any]] | None = None
    chart: LineChart | HeatMap | None = None


def baseline_warning(metric: str, score: float, baseline: float, constant: str, higher_is_better: bool = True) -> str:
    """A warning if a score is not better than that of a constant prediction; otherwise empty."""
    perfect = baseline >= 100 if higher_is_better else baseline <= 0  # all references are the same
    if perfect or (score > baseline if higher_is_better else score < baseline):
        return ""
    return (
        f"{metric} {score:.4g} is not {'above' if higher_is_better else 'below'} {baseline:.4g}, the result of "
        f"{constant}: the model has not learned to use its input. Train longer (train.epochs), raise "
        "train.learning_rate, or add training data"
    )


def warn_below_baseline(results: dict[str, Any], metric: str, baseline: Mapping[str, float], constant: str) -> None:
    """Add a warning to results whose score is not better than that of a constant prediction."""
    score = next(score.value for score in results["scores"] if score.name == metric)
    if warning := baseline_warning(metric, score, baseline[metric], constant):
        results["warning"] = warning


def require_same_task(models: Sequence[LoadedModel], description: str) -> None:
    if len({model.task for model in models}) > 1:
        raise UserError(f"--compare: {description} is compared with another of its task")


def prediction_rows(
    locations: Sequence[str | int],
    inputs: Sequence[Any],
    references: Sequence[Any],
    predictions: Sequence[Sequence[Any]],
    **more: Sequence[Any],
) -> Iterator[dict[str, Any]]:
    """A row per sample with the prediction of one model, or of two (`second`), and `more` columns."""
    names = ("location", "input", "reference", *("prediction", "second")[: len(predictions)], *more)
    rows = zip(locations, inputs, references, *predictions, *more.values(), strict=True)
    return (dict(zip(names, row, strict=True)) for row in rows)


def resolve_split(recipe: Recipe | None, task: str, file: str | None, hint: str, **data: Any) -> tuple[Recipe, str]:
    """A recipe and the name of the split to score: the file, else the recipe's test or validation split.

    A file is read with the recipe's options, replaced by `data` where it is not None. The `hint` ends an error.
    """
    if file:
        known = recipe or Recipe(task=task, output="", data=options_of(task).data())
        options = {name: value for name, value in data.items() if value is not None}
        options |= {"train": "", "validation": "", "test": file, "synthetic": ""}
        return replace(known, data=replace(known.data, **options), origin=str(Path.cwd())), "test"
    if recipe is None:
        raise UserError(f"this model has no recipe that names a test split: give a FILE{hint}")
    split = next((name for name in ("test", "validation") if getattr(recipe.data, name)), None)
    if split is None:
        raise UserError(f"the model's recipe names neither data.test nor data.validation: give a FILE{hint}")
    return recipe, split


def split_changed(model: LoadedModel, split: str) -> bool:
    """Whether the split was held out of a file that has changed since, so that samples may be in another split."""
    if model.recipe is None or model.folder is None:
        return False
    data = model.recipe.data
    facts = model.folder.parent / "environment.json"
    by_content = getattr(data, "stratify", False) or data.split_by == CONTAINING
    if own_file(data, split) or not by_content or not facts.is_file():
        return False
    known = json.loads(facts.read_text(encoding="utf-8")).get("data", {})
    hashes = hash_files(file_of(data, "train", Path(model.recipe.origin), folders_allowed=True))
    return any(known.get(f"train/{name}", "") not in ("", digest) for name, digest in hashes.items())


def column_names(recipe: Recipe | None, **requested: str) -> dict[str, str]:
    """Column names as requested, else as in the recipe."""
    data = recipe.data if recipe else None
    return {role: name or getattr(data, role, "") for role, name in requested.items()}
