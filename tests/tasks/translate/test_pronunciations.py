"""Pronouncing dictionaries: variants of a word stay together, and each of its pronunciations is right."""

import json
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.tasks.registry import task_of
from regard.tasks.scoring import EvaluationRequest
from regard.tasks.translate.dataset import group_references, read, samples
from regard.training.build import prepare_network, prepare_task, start

ENTRIES = """tomato\tT AH0 M EY1 T OW2
tomato(2)\tT AH0 M AA1 T OW2
a.'s\tEY1 Z
cat\tK AE1 T
cat(2)\tK AE1 T
b(1\tB IY1
"""
RECIPE = """
task = "translate"
[data]
train = "words.tsv"
columns = ["word", "phonemes"]
pronunciations = true
validation = {validation}
max_length = 20
[tokenizer]
kind = "characters"
target_kind = "words"
joint = false
vocab_size = 100
min_frequency = 1
[model]
family = "seq2seq"
preset = "tiny"
max_positions = 50
dropout = 0.0
[train]
batch_size = 6
max_steps = {steps}
eval_steps = {steps}
save_steps = {steps}
learning_rate = 1e-2
warmup_steps = 5
schedule = "constant"
label_smoothing = 0.0
threads = 1
"""


def recipe(folder: Path, *overrides: str, steps: int = 2, validation: str = '"words.tsv"') -> Any:
    (folder / "words.tsv").write_text(ENTRIES)
    (folder / "words.toml").write_text(RECIPE.format(steps=steps, validation=validation))
    return load_recipe(folder / "words.toml", [f"output={folder / 'run'}", *overrides])


def test_variants_lose_their_number_and_vowels_their_stress(tmp_path: Path) -> None:
    words = group_references(samples(recipe(tmp_path), "train"))
    assert words == {
        "tomato": ["T AH M EY T OW", "T AH M AA T OW"],
        "a.'s": ["EY Z"],
        "cat": ["K AE T"],
        "b(1": ["B IY"],
    }


def test_stress_may_be_kept(tmp_path: Path) -> None:
    words = group_references(samples(recipe(tmp_path, "data.stress=true"), "train"))
    assert words["tomato"] == ["T AH0 M EY1 T OW2", "T AH0 M AA1 T OW2"]
    with pytest.raises(UserError, match=r"data\.stress = true is about the phonemes"):
        recipe(tmp_path, "data.stress=true", "data.pronunciations=false")


def test_no_word_is_in_two_splits(tmp_path: Path) -> None:
    (tmp_path / "many.tsv").write_text(
        "".join(f"w{index}{variant}\tAA1 B\n" for index in range(200) for variant in ("", "(2)", "(13)"))
    )
    data = recipe(tmp_path, "data.train=many.tsv", "data.test=0.2", validation="0.3").data
    splits = [[record.source for record in read(data, split, tmp_path)] for split in ("train", "validation", "test")]
    assert all(len(words) == 3 * len(set(words)) > 0 for words in splits)
    assert sum(len(set(words)) for words in splits) == len(set().union(*splits)) == 200


def test_letters_are_the_units_of_the_source_and_phonemes_those_of_the_target(tmp_path: Path) -> None:
    loaded = prepare_network(recipe(tmp_path))
    source, target = loaded.processor.source, loaded.processor.target
    assert source is not None and target is not None
    assert len(source.encode("tomato")) == 6 and len(target.encode("T AH M EY T OW")) == 6
    assert target.decode(target.encode("T AH M EY T OW")) == "T AH M EY T OW"
    with pytest.raises(UserError, match=r"tokenizer\.joint = false"):
        recipe(tmp_path, "tokenizer.joint=true")


def test_it_is_trained_and_scored_by_error_rates(tmp_path: Path) -> None:
    trained = recipe(tmp_path, steps=80)
    start(trained, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    metrics = next(line["validation"] for line in lines if "validation" in line)
    assert set(metrics) == {"loss", "wer", "per"} and metrics["wer"] == metrics["per"] == 0.0
    model: Any = regard.load(tmp_path / "run")
    assert model.run("tomato").text in ("T AH M EY T OW", "T AH M AA T OW")
    evaluation = task_of("translate").evaluate([model], EvaluationRequest(str(tmp_path / "words.tsv")))
    scores = {score.name: score.value for score in evaluation.results["scores"]}
    assert (evaluation.results["samples"], scores) == (4, {"wer": 0.0, "per": 0.0})
    with pytest.raises(UserError, match="--by-length and --plot are about BLEU"):
        task_of("translate").evaluate([model], EvaluationRequest(options={"by_length": True}))
    both = task_of("translate").evaluate([model, model], EvaluationRequest(names=("a", "b"), options={"compare": "b"}))
    assert both.results["comparison"][0]["verdict"] == "no difference"


def test_the_best_checkpoint_is_that_of_the_lowest_word_error_rate(tmp_path: Path) -> None:
    prepared = recipe(tmp_path)
    task = prepare_task(prepared, prepare_network(prepared))
    assert (task.score_name, task.ascending) == ("wer", False)
