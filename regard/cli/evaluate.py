"""`regard evaluate`: metrics of a model or of two, predictions to a file, and a plot."""

from pathlib import Path
from typing import Any

from regard.cli.command import option_name
from regard.cli.options import BeamSearchOptions, EvalOptions, FewShotOptions
from regard.cli.output import to_json
from regard.data.columns import NoColumn
from regard.errors import UserError
from regard.explorer.charts import Line, heatmap, line_chart
from regard.model import Model
from regard.tasks.registry import task_of
from regard.tasks.scoring import EvaluationRequest, HeatMap, LineChart


def request_of(
    file: str | None,
    names: list[str],
    scoring: EvalOptions,
    search: BeamSearchOptions,
    few_shot: FewShotOptions,
    batch_size: int,
) -> EvaluationRequest:
    """The request of a command line; options without effect are errors."""
    for name in ("source", "target", "text_pair", "columns"):
        if file is None and getattr(scoring, name):
            problem = f"{option_name(name)} is for a FILE, and none is given"
            raise UserError(f"{problem}: splits of a recipe are read with its options")
    for path in (scoring.plot, scoring.predictions):
        if path and not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}: make it first")
    if scoring.plot and scoring.plot.suffix != ".svg":
        raise UserError(f"--plot {scoring.plot}: expected a name that ends in .svg")
    options = scoring.specified() | few_shot.specified()
    return EvaluationRequest(file, options, search.specified(), names, batch_size)


def evaluate(models: list[Model], request: EvaluationRequest) -> dict[str, Any]:
    """The results, with the files that were written."""
    plot = request.get("plot", None)
    predictions = request.get("predictions", None)
    evaluation = task_of(models[0].task).evaluate(models, request)
    if predictions and evaluation.predictions is not None:
        with predictions.open("w", encoding="utf-8") as file:
            file.writelines(f"{to_json(row, indent=None)}\n" for row in evaluation.predictions)
    if plot and evaluation.chart is not None:
        draw_chart(plot, evaluation.chart)
    written = [path for path in (plot, predictions) if path]
    return evaluation.results | ({"written": written} if written else {})


def draw_chart(path: Path, chart: LineChart | HeatMap) -> None:
    if isinstance(chart, HeatMap):
        heatmap(path, chart.title, chart.labels, chart.labels, chart.shares, chart.texts)
        return
    lines = [Line(name, points, intervals) for name, (points, intervals) in chart.lines.items()]
    line_chart(path, chart.title, chart.x_label, chart.y_label, lines)


def with_evaluate_options(error: NoColumn, task: str) -> UserError:
    """An error about a column, with the options of `regard evaluate` that name it."""
    return error.with_options(COLUMN_OPTIONS, "name all with --columns NAME,…" if task in NAMES_COLUMNS else "")


NAMES_COLUMNS = ("answer", "classify", "embed")
COLUMN_OPTIONS = {
    **dict.fromkeys(("data.text", "data.question", "data.source"), "--source"),
    **dict.fromkeys(("data.text_pair", "data.context"), "--text-pair"),
    **dict.fromkeys(("data.label", "data.answer", "data.target"), "--target"),
}
