"""`regard evaluate` of classifiers: metrics with intervals, by label, and the confusion matrix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.files import Record
from regard.data.targets import targets_of, validated
from regard.errors import UserError
from regard.metrics.bootstrap import paired_test
from regard.progress import counted
from regard.tasks.classify.files import read
from regard.tasks.classify.modality import modality_of
from regard.tasks.classify.options import ClassifyData
from regard.tasks.classify.problem_type import problem_type_of
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import (
    Evaluation,
    EvaluationRequest,
    HeatMap,
    column_names,
    prediction_rows,
    require_same_task,
    resolve_split,
    split_changed,
    warn_below_baseline,
)

CHANGED = "data.train is not the file that was trained on: some samples scored here may have been trained on"


class Selection(NamedTuple):
    """Labelled inputs, where they come from, and how many were skipped because they have no input or no label."""

    name: str
    records: list[Record]
    skipped: int
    inputs: list[Any]  # as `run` takes them
    changed: bool  # whether some may have been trained on
    truncate: bool = False  # as in the model's training


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of classifiers."""
    description = "a classifier"
    request.allow(description, "source", "text_pair", "target", "columns", "truncate", "compare", "plot", "predictions")
    require_same_task(models, description)
    names = (request.get("source"), request.get("target"), request.get("text_pair"))
    chosen = select(models[0], request.file, *names, request.columns)
    truncate = request.get("truncate", False) or chosen.truncate
    evaluation = evaluate(models, chosen, request.batch_size, truncate, request.quiet)
    if request.get("plot"):
        name = Path(request.names[0]).name if request.names else "model"
        evaluation.chart = confusion_chart(name, evaluation.results)
    return evaluation


def select(
    model: LoadedModel, file: str | None, text: str, label: str, text_pair: str = "", columns: tuple[str, ...] = ()
) -> Selection:
    """The file's samples; without one the test split of the model's recipe, else its validation split."""
    network = model.network
    if text_pair and model.recipe and not ClassifyData.of(model.recipe).text_pair:
        raise UserError(f"--text-pair {text_pair}: this model was trained on single texts")
    second = text_pair or ("text_pair" if network.paired and model.recipe is None else "")
    kind = modality_of(network.input_type)
    names = {kind.columns[0]: text, "text_pair": second, "label": label}
    options: dict[str, Any] = column_names(model.recipe, **names)
    options |= {"problem_type": network.problem_type, "stratify": False, "split_by": "source"}  # all of a file
    options |= {"columns": columns} if columns else {}
    recipe, split = resolve_split(model.recipe, "classify", file, f" with {kind.unit} and labels", **options)
    data = ClassifyData.of(recipe)
    targets = targets_of(network.problem_type, network.labels)
    modality = kind(recipe, data, model.processor, network)
    records = list(validated(read(data, split, Path(recipe.origin), kind), targets))
    complete = [record for record in records if record.target and modality.is_readable(record.source)]
    if not complete:
        raise UserError(f"{file or split}: no samples to score")
    inputs = [modality.value(record.source) for record in complete]
    changed = file is None and split_changed(model, split)
    return Selection(file or split, complete, len(records) - len(complete), inputs, changed, data.truncate)


def evaluate(
    models: Sequence[LoadedModel], chosen: Selection, batch_size: int = 32, truncate: bool = False, quiet: bool = True
) -> Evaluation:
    """Metrics of one model; of two models also a paired test."""
    if len({model.network.problem_type for model in models}) > 1:
        raise UserError("--compare: the models have different problem types")
    with counted("predicting", len(chosen.inputs) * len(models), quiet) as progress:
        options = {"batch_size": batch_size, "truncate": truncate, "progress": progress}
        predictions = [model.run(chosen.inputs, **options) for model in models]
    problem_type = problem_type_of(models[0].network)
    references = [problem_type.parse(record.target) for record in chosen.records]
    results: dict[str, Any] = {"samples": len(references), "split": chosen.name}
    results |= {"skipped": chosen.skipped} if chosen.skipped else {}
    results |= {"note": CHANGED} if chosen.changed else {}
    classes = models[0].network.problem_type != "regression"
    results |= {"probabilities": "uncalibrated"} if classes else {}
    results |= problem_type.report(predictions[0], references)
    targets = targets_of(models[0].network.problem_type, models[0].network.labels)
    encoded = targets.encode_many([record.target for record in chosen.records])
    baseline = problem_type.baseline(targets.tensor([np.array(row) for row in encoded]))
    warn_below_baseline(results, problem_type.scores[0], baseline, problem_type.constant)
    if len(models) > 1:
        values = [
            np.array([problem_type.metric_of(*pair) for pair in zip(row, references, strict=True)], float)
            for row in predictions
        ]
        test = paired_test(problem_type.metric, *values)
        results["comparison"] = test.to_dict(higher_is_better=problem_type.higher_is_better)
    rows = prediction_rows(
        [record.location for record in chosen.records],
        chosen.inputs,
        references,
        [[problem_type.value_of(prediction) for prediction in row] for row in predictions],
        **({"scores": [prediction.scores for prediction in predictions[0]]} if classes else {}),
    )
    return Evaluation(results, rows)


def confusion_chart(name: str, results: dict[str, Any]) -> HeatMap:
    """Reference labels (rows) and predicted labels (columns), in counts, shaded by their share of the row."""
    if "confusion_matrix" not in results:
        raise UserError("--plot draws a confusion matrix: it is for single-label classifiers")
    matrix = results["confusion_matrix"]
    counts = [list(row.values()) for row in matrix.values()]
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    title = f"{name}: reference ↓ / prediction →"
    return HeatMap(title, list(matrix), shares, [[str(count) for count in row] for row in counts])
