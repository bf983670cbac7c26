"""The pictures of the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.explorer.charts import Bar, Line, bar_chart, heatmap, line_chart
from road.plan import Rung
from road.sheet import Sheet

LADDER, LENGTHS = "ladder.svg", "bleu-by-length.svg"
ROWS = 24


def draw(sheet: Sheet, folder: Path) -> Iterator[Path]:
    """Every picture that what was measured allows."""
    measured = [rung for rung in sheet.plan.road if sheet.of(rung)]
    if measured:
        bars = [_bar(sheet, rung) for rung in measured]
        yield bar_chart(folder / LADDER, "BLEU of each rung", "BLEU on the test part, greedy", bars)
    if lines := [_line(sheet, rung) for rung in measured if rung.line]:
        across = "words in the source (mean of each group)"
        yield line_chart(folder / LENGTHS, "BLEU by length of the source", across, "BLEU", lines)
    for rung in sheet.plan.rungs:
        found = sheet.of(rung)
        looks = found["sentence"]["looks"] if found else None
        if looks:
            yield _looks(folder / f"{rung.name}.svg", rung.title, looks)


def _looks(path: Path, title: str, looks: dict[str, Any]) -> Path:
    """What was looked at for each piece written, or for the first of them where a model does not find an end."""
    rows, cut = looks["rows"][:ROWS], len(looks["rows"]) > ROWS
    title = f"{title}: what it looked at" + (f", the first {ROWS} of {len(looks['rows'])} pieces" if cut else "")
    return heatmap(path, title, rows, looks["columns"], looks["weights"][:ROWS])


def _bar(sheet: Sheet, rung: Rung) -> Bar:
    score = sheet.measured[rung.name]["greedy"]["bleu"]
    return Bar(sheet.heading(rung), score["value"], score["interval"])


def _line(sheet: Sheet, rung: Rung) -> Line:
    return Line(rung.line, [(row["mean"], row["bleu"]) for row in sheet.measured[rung.name]["by_length"]])
