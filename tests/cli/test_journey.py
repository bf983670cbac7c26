"""From a recipe to an answer on the command line: train, stop, resume, run, evaluate, inspect."""

import io
import json
from pathlib import Path

import pytest
from calling import Call

RECIPE = """
task = "translate"
[data]
generate = "reverse"
train = 211
validation = 23
test = 19
[tokenizer]
kind = "words"
vocab_size = 60
[model]
family = "transformer"
width = 12
heads = 3
depth = 2
feedforward = 17
[train]
batch_size = 13
max_steps = 6
eval_steps = 3
save_steps = 2
warmup_steps = 2
"""


@pytest.fixture
def trained(call: Call, tmp_path: Path) -> Path:
    recipe, run = tmp_path / "mine.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    code, out, err = call("train", recipe, f"output={run}", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["status"], summary["steps"], summary["run"]) == ("finished", 6, str(run))
    return run


def test_a_run_is_not_overwritten_and_a_finished_one_resumes_to_itself(call: Call, trained: Path) -> None:
    code, _, err = call("train", trained.parent / "mine.toml", f"output={trained}")
    assert code == 1
    assert f"regard resume {trained}" in err
    weights = (trained / "checkpoint-6" / "model.safetensors").read_bytes()
    code, out, _ = call("resume", trained, "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 6
    assert (trained / "checkpoint-6" / "model.safetensors").read_bytes() == weights


def test_a_run_that_lost_its_end_resumes_to_the_same_weights(call: Call, trained: Path) -> None:
    last = trained / "checkpoint-6"
    weights = (last / "model.safetensors").read_bytes()
    last.rename(trained.parent / "elsewhere")
    moved = trained.rename(trained.parent / "moved")
    code, _, err = call("resume", moved, "--quiet")
    assert code == 0, err
    assert (moved / "checkpoint-6" / "model.safetensors").read_bytes() == weights


def test_arguments_stdin_and_batches_give_the_same_answers(
    call: Call, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = ["1 2 3", "", "4 5", "6 7 8 9 10"]
    code, given, _ = call("run", trained, *inputs)
    assert code == 0
    assert len(given.splitlines()) == len(inputs)
    assert given.splitlines()[1] == ""
    for size in (1, 3):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in inputs)))
        assert call("run", trained, "--batch-size", size)[1] == given
    code, out, _ = call("run", trained, *inputs, "--json", "--num-beams", 3, "--num-return-sequences", 2)
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(inputs)
    assert all(len(answer["alternatives"]) == 1 for answer in answers if answer["text"])


def test_sampling_follows_its_seed(call: Call, trained: Path) -> None:
    options = ("run", trained, "11 12 13 14 15 16 17", "--temperature", 1.5, "--seed")
    assert call(*options, 1)[1] == call(*options, 1)[1]
    assert call(*options, 1)[1] != call(*options, 2)[1]


def test_evaluate_scores_the_test_split_or_a_file_with_signatures(call: Call, trained: Path, tmp_path: Path) -> None:
    code, out, _ = call("evaluate", trained, "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["split"], result["samples"]) == ("test", 19)
    assert all(score["signature"] for score in result["scores"])
    file = tmp_path / "other.tsv"
    file.write_text("source\ttarget\n1 2\t2 1\n3 4 5\t5 4 3\n6\t6\n")
    options = ("--source", "source", "--target", "target", "--json", "--predictions")
    code, out, _ = call("evaluate", trained, file, *options, tmp_path / "told.jsonl")
    assert code == 0
    assert json.loads(out)["samples"] == 3
    lines = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [(line["location"], line["input"], line["reference"]) for line in lines][2] == (3, "6", "6")
    code, _, said = call("evaluate", trained, file, *options, tmp_path / "nowhere" / "told.jsonl")
    assert code == 1 and "there is no folder" in said


def test_a_model_compared_with_itself_does_not_differ(call: Call, trained: Path) -> None:
    code, out, _ = call("evaluate", trained, "--compare", trained, "--json")
    assert code == 0
    for row in json.loads(out)["comparison"]:
        assert row["first"] == row["second"]
        assert row["verdict"] == "no difference"


def test_inspect_counts_every_parameter_and_names_every_site(call: Call, trained: Path) -> None:
    from regard.model import load

    code, out, _ = call("inspect", trained, "--json")
    facts = json.loads(out)
    model = load(trained)
    assert code == 0
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.network.parameters())
    assert facts["sites"] == model.trace("1 2 3").sites
    assert len(facts["sites"]) == 3 * 2
    assert len(facts["files"]["model.safetensors"]["sha256"]) == 64
    assert call("inspect", trained)[0] == 0
