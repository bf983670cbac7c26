"""Texts longer than the maximum length: skipped, or truncated if the recipe sets it; counted in both cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from calling import Call

import regard
from regard.config.recipe import load_recipe
from regard.tasks.base import Task
from regard.tasks.registry import build
from regard.training.build import prepare_network

LIMIT = 11
SHORT = [f"{word} w1 w2" for word in ("good", "bad")] * 8
LONG = [f"{word} " + "w3 " * 40 for word in ("good", "bad")] * 2

RECIPE = """
task = "classify"
[data]
train = "train.tsv"
validation = "train.tsv"
columns = ["label", "text"]
truncate = {truncate}
[tokenizer]
kind = "words"
[model]
family = "bert"
width = 16
heads = 2
depth = 1
max_positions = 11
[train]
batch_size = 5
max_steps = 3
eval_steps = 2
threads = 1
"""


def task(folder: Path, truncate: bool) -> Task[Any]:
    rows = [f"{text.split()[0]}\t{text}" for text in LONG + SHORT]
    (folder / "train.tsv").write_text("\n".join(rows) + "\n")
    (folder / "recipe.toml").write_text(RECIPE.format(truncate=str(truncate).lower()))
    recipe = load_recipe(str(folder / "recipe.toml"), [f"output={folder / 'run'}"])
    loaded = prepare_network(recipe)
    return build(recipe, loaded.processor, loaded.network, folder / "cache")


def test_long_texts_are_skipped_by_default(tmp_path: Path) -> None:
    training = task(tmp_path, truncate=False).training
    assert len(training) == len(SHORT)
    assert f"{len(LONG)} skipped: longer than {LIMIT} tokens" in str(training.report)
    assert "truncated" not in str(training.report)


def test_long_texts_are_truncated_on_request(tmp_path: Path) -> None:
    built = task(tmp_path, truncate=True)
    training = built.training
    assert len(training) == len(SHORT + LONG)
    assert f"{len(LONG)} truncated" in str(training.report)
    rows = [training.source(index).tolist() for index in range(len(training))]
    assert max(map(len, rows)) == LIMIT
    assert {row[-1] for row in rows} == {built.tokenizer.end}
    assert str(task(tmp_path, truncate=True).training.report) == str(training.report)  # from the cache


def test_a_model_trained_on_truncated_texts_is_evaluated_on_them(call: Call, tmp_path: Path) -> None:
    task(tmp_path, truncate=True)
    run = tmp_path / "run"
    assert call("train", tmp_path / "recipe.toml", f"output={run}", "--quiet")[0] == 0
    code, printed, _ = call("evaluate", run, "--json")
    assert code == 0
    assert json.loads(printed)["samples"] == len(SHORT + LONG)
    model = regard.load(run)
    with pytest.raises(regard.UserError, match="truncate"):  # a single prediction still needs the option
        model.run(LONG[0])
    assert model.run(LONG[0], truncate=True).truncated
