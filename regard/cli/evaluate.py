"""`regard evaluate`: metrics of a model or of two, predictions to a file, and a plot."""

from pathlib import Path
from typing import Any

from regard.cli.output import to_json
from regard.data.columns import NoColumn
from regard.explorer.charts import heatmap, line_chart
from regard.model import Model
from regard.tasks.registry import task_of
from regard.tasks.scoring import EvaluationRequest, HeatMap, LineChart

NAMES_COLUMNS = ("answer", "classify", "embed")
COLUMN_OPTIONS = {
    **dict.fromkeys(("data.text", "data.question", "data.source", "data.image"), "--source"),
    **dict.fromkeys(("data.text_pair", "data.context"), "--text-pair"),
    **dict.fromkeys(("data.label", "data.answer", "data.target", "data.caption"), "--target"),
}
SELECTED = "validation split, also used to select the checkpoint; give a test FILE for an unbiased figure"


def evaluate(models: list[Model], request: EvaluationRequest) -> dict[str, Any]:
    """The results, with the files that were written."""
    plot = request.get("plot", None)
    predictions = request.get("predictions", None)
    task = models[0].task
    try:
        evaluation = task_of(task).evaluate(models, request)
    except NoColumn as error:  # of a file, columns are named by options
        hint = "name all with --columns NAME,…" if task in NAMES_COLUMNS else ""
        raise error.with_options(COLUMN_OPTIONS, hint) if request.file else error from None
    if predictions and evaluation.predictions is not None:
        with predictions.open("w", encoding="utf-8") as file:
            file.writelines(f"{to_json(row, indent=None)}\n" for row in evaluation.predictions)
    if plot and evaluation.chart is not None:
        draw_chart(plot, evaluation.chart)
    written = [path for path in (plot, predictions) if path]
    recipe = models[0].recipe
    selected = not request.file and recipe is not None and not recipe.data.test
    notes = [evaluation.results.get("note"), SELECTED if selected else None]
    note = "; ".join(filter(None, notes))
    return evaluation.results | ({"written": written} if written else {}) | ({"note": note} if note else {})


def draw_chart(path: Path, chart: LineChart | HeatMap) -> None:
    if isinstance(chart, HeatMap):
        heatmap(path, chart.title, chart.labels, chart.labels, chart.shares, chart.texts)
    else:
        line_chart(path, *chart)
