"""`regard list`: an overview of one screen, and all details by section or as JSON."""

import json
import re

import pytest
from calling import Call

from regard.config.recipe_files import shipped_recipes
from regard.models.registry import FAMILIES
from regard.tasks.registry import TASKS


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w.=-]+", text))


def test_json_names_all_recipes_families_and_tasks(call: Call) -> None:
    code, out, _ = call("list", "--json")
    listed = json.loads(out)
    assert code == 0
    assert listed.keys() == {"families", "presets", "tasks", "recipes"}
    assert list(listed["recipes"]) == shipped_recipes()
    assert set(listed["families"]) == set(FAMILIES)
    assert listed["tasks"] == sorted(TASKS)
    for name in ("models", "recipes", "tasks"):
        assert json.loads(call("list", name, "--json")[1]).keys() <= listed.keys()
    assert json.loads(call("list", "recipes", "--json")[1])["recipes"] == listed["recipes"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_overview_fits_a_screen(call: Call, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = call("list")
    assert code == 0
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= width
    assert {*TASKS, *FAMILIES, "audio", "classify", "image", "translate", "write"} <= words(out)  # recipes for own data
    assert "sst2" not in words(out)
    for section in ("recipes", "models", "tasks"):
        assert f"regard list {section}" in " ".join(out.replace("│", " ").split())


def test_recipes_of_the_ablation_study_come_last_and_on_request(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    few, every = call("list", "recipes")[1], call("list", "recipes", "--all")[1]
    assert "multi30k-transformer" in few
    assert "multi30k-small" not in few
    assert "regard list recipes --all" in few
    assert set(shipped_recipes()) <= words(every)
    assert every.index("│ write ") < every.index("│ multi30k-bahdanau ")


def test_a_task_is_listed_with_the_families_it_supports(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = call("list", "tasks")[1]
    (line,) = [line for line in out.splitlines() if line.startswith("│ translate ")]
    assert "transformer" in line
    assert "bert" not in line


def test_an_unknown_section_is_named_with_the_nearest(call: Call) -> None:
    code, out, err = call("list", "recipies")
    assert (code, out) == (1, "")
    assert "no section 'recipies'; did you mean 'recipes'?" in err


@pytest.mark.parametrize("width", [80, 120])
def test_presets_fit_the_width_of_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = call("list", "models")[1]
    assert max(map(len, out.splitlines())) <= width
    words = set(re.findall(r"[\w.=-]+", out))
    for family in FAMILIES.values():
        for name, preset in family.presets.items():
            assert name in words
            for key, value in preset.items():
                assert key in words or f"{key}={str(value).lower() if isinstance(value, bool) else value}" in words
    assert {"pooler=false", "output_activation=gelu"} <= words
