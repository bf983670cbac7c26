"""docs/in-context.md has the measured values: its tables, its charts, and the figures in the recipes' headers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from regard.config.recipe import load_recipe
from regard.config.recipe_files import find_recipe
from road.in_context import FIGURES, HOME, LESSON, MEASURED, PAGE, draw, filled

RESULTS: dict[str, Any] = json.loads((HOME / MEASURED).read_text(encoding="utf-8"))


def test_the_page_is_what_was_measured() -> None:
    page = (HOME / PAGE).read_text(encoding="utf-8")
    assert filled(page, RESULTS) == page, "run `python -m road.in_context --write`"


def test_the_charts_are_what_was_measured(tmp_path: Path) -> None:
    draw(RESULTS, tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (HOME / FIGURES).iterdir()}
    assert drawn == kept, "run `python -m road.in_context --write`"


@pytest.mark.parametrize("name", RESULTS)
def test_a_recipe_states_the_accuracies_that_were_measured(name: str) -> None:
    path = find_recipe(name)
    assert path is not None
    lines = path.read_text(encoding="utf-8").splitlines()
    text = " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))
    for row in RESULTS[name]["shots"]:
        assert re.search(rf"(?<![\d.]){row['accuracy']:.1f}(?![\d])", text), f"{name}: {row}"
    assert load_recipe(name).train.max_steps == RESULTS[name]["steps"]


def test_in_context_accuracy_rises_from_chance_to_near_optimal() -> None:
    rows = {row["shots"]: row for row in RESULTS[LESSON]["shots"]}
    assert abs(rows[0]["accuracy"] - 25) < 2 * rows[0]["interval"]
    assert rows[8]["accuracy"] > 90
    for row in rows.values():
        assert row["accuracy"] < row["ideal"] + 2 * row["interval"]  # nobody is better than an ideal learner
