"""A new task is one folder and one registry line: it is trained, run, evaluated, traced and checked by doctor."""

import json
from pathlib import Path

import pytest
from calling import Call

import regard
from regard.tasks import registry

RECIPE = """
task = "vowels"
[data]
train = "train.txt"
validation = "validation.txt"
test = "validation.txt"
[tokenizer]
kind = "characters"
[model]
family = "bert"
preset = "tiny"
width = 24
heads = 2
depth = 1
[train]
batch_size = 8
max_steps = 60
learning_rate = 0.01
warmup_steps = 5
eval_steps = 30
"""
FOLDER = Path(__file__).parent / "vowels"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "TASKS", {**registry.TASKS})
    registry.register("vowels", "tests.tasks.vowels:VowelTask")
    monkeypatch.chdir(tmp_path)
    words = ["apple", "banana", "egg", "tree", "umbrella", "ice", "dog"]
    texts = [" ".join(words[(row * step) % 7] for step in range(1, 5)) for row in range(1, 50)]
    (tmp_path / "train.txt").write_text("\n".join(texts))
    (tmp_path / "validation.txt").write_text("\n".join(texts[:9]))
    (tmp_path / "vowels.toml").write_text(RECIPE)
    return tmp_path / "vowels.toml"


def test_the_folder_is_short() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")) < 150


def test_a_new_task_works_everywhere(recipe: Path, call: Call) -> None:
    status, out, err = call("doctor", recipe, "--json")
    assert status == 0, err
    assert json.loads(out)["facts"]["samples"]["train"]["kept"] == 49
    status, out, err = call("train", recipe, "--json")
    assert status == 0, err
    assert json.loads(out)["best_score"] > 95
    model = regard.load("runs/vowels")
    assert model.task == "vowels"
    assert "A" in model.run("banana").text
    assert "b" in model.run("banana").text
    assert [each.text.count("E") for each in model.run(["egg", "dog"])] == [1, 0]
    trace = model.trace("apple tree")
    assert trace.weights(trace.sites[0]).sum(-1).allclose(trace.weights(trace.sites[0]).new_ones(()))
    status, out, err = call("evaluate", "runs/vowels", "--json")
    assert status == 0, err
    assert json.loads(out)["accuracy"] > 95
    status, out, err = call("run", "runs/vowels", "apple", "--json")
    assert status == 0, err
    assert "A" in json.loads(out)["text"]
    assert call("run", "runs/vowels", "apple", "--best", "3")[0] != 0


def test_its_key_errors_name_the_tasks_that_have_a_key(recipe: Path, call: Call) -> None:
    status, _, err = call("train", recipe, "data.mask_probability=0.3")
    assert status == 1 and "is not an option of task = 'vowels'" in err and "fill" in err
