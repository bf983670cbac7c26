"""Datasets of other packages: found by the name they declare, never by code that a recipe names."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from regard.config.options import DocumentOptions, TokenizerOptions
from regard.config.recipe import Recipe
from regard.data.synthetic import in_context
from regard.data.synthetic.in_context import DATASETS, dataset_names, in_context_dataset
from regard.errors import UserError
from regard.tasks.generate.dataset import train_vocabulary
from road.text_to_sql.dataset import DATASET


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of the group `regard.synthetic`, instead of the installed ones."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(in_context, "entry_points", lambda **filters: EntryPoints(points).select(**filters))
    return points


def test_text_to_sql_is_declared_by_the_installed_package() -> None:
    assert "sql" in dataset_names()
    assert in_context_dataset("sql") is DATASET


def test_where_nothing_is_declared_the_error_names_what_is_possible(declared: list[EntryPoint]) -> None:
    assert dataset_names() == sorted(DATASETS)
    with pytest.raises(UserError, match=r"'sql' is not an in-context dataset; expected one of: colours, linear, map"):
        in_context_dataset("sql")
    with pytest.raises(UserError, match="did you mean 'mappings'"):
        in_context_dataset("mapings")


def test_a_declared_dataset_is_imported_only_when_named(
    declared: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_of_lines.py").write_text(
        "from regard.data.synthetic.in_context import DATASETS\nD = DATASETS['linear']"
    )
    monkeypatch.syspath_prepend(tmp_path)
    declared.append(EntryPoint("mine", "made_of_lines:D", in_context.GROUP))
    assert dataset_names() == sorted([*DATASETS, "mine"])
    assert "made_of_lines" not in sys.modules
    assert in_context_dataset("mine") is DATASETS["linear"]


def test_a_built_in_dataset_cannot_be_replaced(declared: list[EntryPoint]) -> None:
    declared.append(EntryPoint("linear", "road.text_to_sql.dataset:DATASET", in_context.GROUP))
    assert in_context_dataset("linear") is DATASETS["linear"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_package:D", "no_such_package:D cannot be imported"),
        ("json:no_such_name", "json:no_such_name cannot be imported"),
        ("json:dumps", "json:dumps is a function, expected an InContextDataset"),
    ],
)
def test_a_declaration_that_holds_nothing_is_named(declared: list[EntryPoint], value: str, message: str) -> None:
    declared.append(EntryPoint("mine", value, in_context.GROUP))
    with pytest.raises(UserError, match=f"data.synthetic = 'mine': {message}"):
        in_context_dataset("mine")


@pytest.mark.parametrize("name", ["road.text_to_sql.dataset:DATASET", "os:system", "antigravity"])
def test_code_that_a_recipe_names_is_never_imported(name: str) -> None:
    data = DocumentOptions(train=10, synthetic=name)
    recipe = Recipe(task="generate", output="", data=data, tokenizer=TokenizerOptions(kind="byte_bpe"))
    with pytest.raises(UserError, match="is not an in-context dataset"):
        train_vocabulary(recipe)
    assert "antigravity" not in sys.modules
