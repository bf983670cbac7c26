"""The doctor finds exactly what was planted: leaks, skips, unknown words; and its measures follow the batch."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.config.recipe import load_recipe
from regard.training.build import start
from regard.training.doctor import Findings, examine, saved_activations

RECIPE = """
task = "translate"
output = "{output}"
[data]
train = "train.tsv"
validation = "validation.tsv"
columns = ["source", "target"]
max_length = 11
[tokenizer]
kind = "words"
min_frequency = 1
[model]
family = "transformer"
width = 12
heads = 3
depth = 1
feedforward = 17
[train]
batch_size = 7
max_steps = 30
warmup_steps = 3
eval_steps = 10
"""


def sentence(number: int, length: int = 5) -> str:
    return " ".join(f"w{(number * 7 + place * place) % 31}" for place in range(length)) + f" n{number % 53}"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """53 training pairs, two of them too long; 13 for validation, three pairs and one more source from train."""
    pairs = [(sentence(n), sentence(n + 1)) for n in range(51)] + [(sentence(n, 12), sentence(n)) for n in (51, 52)]
    held_out = [*pairs[:3], (pairs[3][0], "w1 w2"), *((f"w1 n{n}", f"w2 n{n}") for n in range(9))]
    for name, part in (("train", pairs), ("validation", held_out)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in part))
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.format(output=tmp_path / "run"))
    return path


def found(recipe: Path, *overrides: str) -> Findings:
    return examine(load_recipe(recipe, overrides))


def test_planted_leaks_and_skips_are_counted(recipe: Path) -> None:
    findings = found(recipe)
    assert findings.facts["train_overlap"] == {"validation": {"same_source": 4, "same_pair": 3}}
    leak = next(line for line in findings.warnings if "in train too" in line)
    assert "3 of 13" in leak
    assert sentence(0) in leak
    samples = findings.facts["samples"]["train"]
    assert (samples["read"], samples["kept"], samples["skipped"]) == (53, 51, 2)
    assert findings.facts["sample_tokens"]["train source"]["max"] == 6
    assert not findings.errors


def test_unknown_words_are_measured_and_a_warning(recipe: Path) -> None:
    (recipe.parent / "validation.tsv").write_text("zebra w1\tw2 w3\nw4 w5\tw6 w7\n")
    findings = found(recipe)
    assert findings.facts["tokenizer"]["validation source"]["unknown_percent"] == 25
    assert findings.facts["tokenizer"]["validation target"]["unknown_percent"] == 0
    assert [line for line in findings.warnings if "unknown" in line and "source" in line]


def test_an_existing_run_is_an_error_and_nothing_is_written(recipe: Path) -> None:
    assert not found(recipe).errors
    assert not (recipe.parent / "run").exists()
    (recipe.parent / "run").mkdir()
    (recipe.parent / "run" / "recipe.toml").write_text("")
    assert "regard resume" in found(recipe).errors[0]


def test_settings_that_cannot_work_are_a_warning(recipe: Path) -> None:
    assert any("eval_steps" in line for line in found(recipe, "train.eval_steps=37").warnings)
    assert not any("_steps" in line for line in found(recipe).warnings)
    short = [line for line in found(recipe, "train.max_steps=0", "train.epochs=1").warnings if "too few" in line]
    assert short and "train.epochs = 1 is only" in short[0] and "train.max_steps=5000" in short[0]
    options = ("train.max_steps=0", "train.epochs=1", "train.min_steps=120")
    findings = found(recipe, *options)
    assert findings.facts["time"]["steps"] == 120
    assert not any("too few" in line for line in findings.warnings)


def test_memory_and_time_add_up(recipe: Path) -> None:
    facts = found(recipe, "train.ema_decay=0.9", "train.max_steps=0", "train.epochs=3").facts
    network, time = facts["network"], facts["time"]
    assert network["weight_bytes"] == 4 * network["parameters"]
    assert network["optimizer_bytes"] == 3 * network["weight_bytes"]  # two moments and the average
    parts = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
    assert network["memory_bytes"] == sum(network[part] for part in parts)
    assert time["epochs"] == pytest.approx(3, rel=0.1)
    assert time["training_seconds"] == pytest.approx(time["steps"] * time["step_seconds"])


@pytest.mark.parametrize(
    ("given", "most"),
    [
        (["train.max_steps=7"], 1),  # the end
        (["train.max_steps=7", "train.save_steps=5"], 2),
        (["train.max_steps=7", "train.save_steps=2", "train.eval_steps=3"], 4),  # the best of 2, 3, 4, 6, 7
        (["train.max_steps=7", "train.save_steps=2", "train.eval_steps=3", "train.keep=1"], 2),
        (["train.max_steps=7", "train.save_steps=2", "train.keep=1", "data.validation="], 1),
    ],
)
def test_no_more_checkpoints_are_counted_than_are_written(recipe: Path, given: list[str], most: int) -> None:
    network = found(recipe, *given).facts["network"]
    assert network["checkpoints_bytes"] == most * 4 * network["weight_bytes"]


def _tensor_bytes(file: Path) -> int:
    """Of a safetensors file without its header, which begins with its own length."""
    raw = file.read_bytes()
    return len(raw) - 8 - int.from_bytes(raw[:8], "little")


@pytest.mark.parametrize("given", [[], ["train.freeze=embeddings", "train.ema_decay=0.9"]])
def test_checkpoints_have_the_estimated_size(recipe: Path, given: list[str]) -> None:
    given = ["train.max_steps=4", "train.save_steps=2", "train.keep=3", *given]
    foretold = found(recipe, *given).facts["network"]["checkpoints_bytes"]
    start(load_recipe(recipe, given), quiet=True)
    folders = list((recipe.parent / "run").glob("checkpoint-*"))
    size = sum(_tensor_bytes(file) for folder in folders for file in folder.glob("*.safetensors"))
    assert len(folders) == 2 and size == pytest.approx(foretold, rel=0.03)  # AdamW also counts its steps


def test_activations_grow_with_the_batch_and_leave_the_weights_out() -> None:
    network = nn.Sequential(nn.Linear(11, 13), nn.Tanh(), nn.Linear(13, 5))
    held = []
    for rows in (3, 6):
        with saved_activations(network) as kept:
            network(torch.randn(rows, 11)).square().sum().backward()
        held.append(sum(kept.values()))
    assert held[0] == 4 * 3 * (11 + 13 + 5)  # each layer's input, and the last output for its square
    assert held[1] == 2 * held[0]


def test_json_holds_all_findings(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from regard.cli.main import main

    with pytest.raises(SystemExit) as left:
        main(["doctor", str(recipe), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert left.value.code == 0
    assert document.keys() == {"facts", "errors", "warnings"}
    with pytest.raises(SystemExit) as left:
        main(["doctor", str(recipe)])
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert "warning: validation: 3 of 13" in text


# ── raw text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

RUNNING = """
task = "generate"
output = "{output}"
[data]
train = "train.jsonl"
validation = "validation.jsonl"
text = "text"
[tokenizer]
kind = "characters"
min_frequency = 1
[model]
family = "gpt"
width = 12
heads = 3
depth = 1
max_positions = 17
[train]
batch_size = 5
epochs = 3
warmup_steps = 3
eval_steps = 10
"""


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """31 documents of which one is blank; 7 for validation: two from train, one half of letters never seen."""
    texts = [*(sentence(number) for number in range(30)), " \n"]
    held_out = [*texts[:2], "w1" + "é" * 2, *(f"w{number} n1" for number in range(4))]
    for name, part in (("train", texts), ("validation", held_out)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    path = tmp_path / "mine.toml"
    path.write_text(RUNNING.format(output=tmp_path / "run"))
    return path


def test_raw_text_is_counted_in_documents_tokens_bytes_and_blocks(running: Path) -> None:
    findings = found(running)
    texts = [sentence(number) for number in range(30)]
    train, validation = findings.facts["text"]["train"], findings.facts["text"]["validation"]
    size = sum(map(len, texts))
    assert (train["documents"], train["skipped"], train["bytes"]) == (30, 1, size)
    assert train["tokens"] == size + 30  # each ends with a token
    assert train["bytes_per_token"] == pytest.approx(size / (size + 30), abs=1e-3)
    assert (validation["documents"], train["unknown_percent"]) == (7, 0)
    assert validation["unknown_percent"] == pytest.approx(100 * 2 / validation["tokens"], abs=1e-3)
    assert any("validation" in line and "unknown" in line for line in findings.warnings)
    blocks = findings.facts["blocks"]
    assert (blocks["tokens_per_block"], blocks["blocks_per_batch"]) == (17, 5)
    assert blocks["blocks_per_epoch"] == train["tokens"] // 17
    assert findings.facts["time"]["steps"] == 3 * blocks["batches_per_epoch"]
    assert not findings.errors


def test_repeated_documents_are_counted(running: Path) -> None:
    findings = found(running)
    assert findings.facts["train_overlap"] == {"validation": {"same_document": 2}}
    assert any("2 of 7 documents are in train too" in line for line in findings.warnings)
    (running.parent / "book.txt").write_text("It was a dark night.\n" * 99)
    alone = found(running, "data.train=book.txt", "data.validation=0.1", "data.text=")
    assert alone.facts["text"]["train"]["documents"] == 1
    assert alone.facts["train_overlap"] == {"validation": {"same_document": 0}}
    assert not [line for line in alone.warnings if "train too" in line]


def test_a_text_without_validation_or_in_another_script_is_a_warning(running: Path) -> None:
    assert any("no validation split" in line for line in found(running, "data.validation=").warnings)
    (running.parent / "train.jsonl").write_text(json.dumps({"text": "the same words again " * 99}) + "\n")
    (running.parent / "validation.jsonl").write_text(json.dumps({"text": "öäü" * 99}) + "\n")
    options = ["tokenizer.kind=byte_bpe", "tokenizer.vocab_size=300", "model.max_positions=3"]
    warnings = found(running, *options).warnings
    assert any("bytes per token" in line and "another language?" in line for line in warnings)
    assert not any("unknown" in line for line in warnings)
