"""The pictures of the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.explorer.charts import Bar, Curve, bar_chart, heatmap, line_chart
from road.plan import Experiment
from road.sheet import Sheet

COMPARISON_CHART, LENGTHS = "comparison.svg", "bleu-by-length.svg"
ROWS = 24


def draw(sheet: Sheet, folder: Path) -> Iterator[Path]:
    """Every picture that what was measured allows."""
    measured = [experiment for experiment in sheet.plan.comparison if sheet.of(experiment)]
    if measured:
        bars = [_bar(sheet, experiment) for experiment in measured]
        yield bar_chart(
            folder / COMPARISON_CHART, "BLEU of each model", "BLEU on the test split, greedy decoding", bars
        )
    if lines := {experiment.line: _curve(sheet, experiment) for experiment in measured if experiment.line}:
        across = "words in the source (mean of each group)"
        yield line_chart(folder / LENGTHS, "BLEU by length of the source", across, "BLEU", lines)
    for experiment in sheet.plan.experiments:
        results = sheet.of(experiment)
        attention = results["sentence"]["attention"] if results else None
        if attention:
            yield _attention(folder / f"{experiment.name}.svg", experiment.title, attention)


def _attention(path: Path, title: str, attention: dict[str, Any]) -> Path:
    """Attention weights of each generated token, or of the first ones where a model does not end its output."""
    count = len(attention["rows"])
    title = f"{title}: attention weights" + (f", the first {ROWS} of {count} tokens" if count > ROWS else "")
    return heatmap(path, title, attention["rows"][:ROWS], attention["columns"], attention["weights"][:ROWS])


def _bar(sheet: Sheet, experiment: Experiment) -> Bar:
    score = sheet.measured[experiment.name]["greedy"]["bleu"]
    return Bar(sheet.heading(experiment), score["value"], score["interval"])


def _curve(sheet: Sheet, experiment: Experiment) -> Curve:
    return [(row["mean"], row["bleu"]) for row in sheet.measured[experiment.name]["by_length"]], []
