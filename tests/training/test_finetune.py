"""Training on from weights: exact, on the run's own checkpoints, and with all that the weights came with."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.cli.main import main
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.training import checkpoint
from regard.training.build import resume, start
from regard.training.run_folder import lock

RECIPE = """
task = "translate"
[data]
generate = "reverse"
train = 101
validation = 7
[tokenizer]
kind = "words"
vocab_size = 60
[model]
{model}
[train]
batch_size = 11
max_steps = {steps}
eval_steps = 3
save_steps = 4
warmup_steps = 2
learning_rate = 3e-3
ema_decay = 0.9
threads = 1
"""
MODELS = {
    "marian": 'family = "transformer"\nwidth = 12\nheads = 3\ndepth = 1\nfeedforward = 17\ndropout = 0.3',
    "ours": 'family = "seq2seq"\nembedding = 11\nwidth = 14\ndropout = 0.3',
}
FILES = ("model.safetensors", "training.safetensors", "config.json", "generation_config.json")


def train(folder: Path, name: str, model: str, steps: int = 9, *overrides: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(RECIPE.format(model=model, steps=steps))
    start(load_recipe(path, [f"output={folder / name}", *overrides]), quiet=True)
    return folder / name


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: train(tmp_path_factory.mktemp(name), "base", model, 5) for name, model in MODELS.items()}


@pytest.fixture
def base(bases: dict[str, Path], tmp_path: Path) -> Path:
    """A run that a test may damage."""
    return shutil.copytree(bases["marian"], tmp_path / "base")


@pytest.mark.parametrize("kind", MODELS)
def test_an_interrupted_fine_tuning_resumes_bit_identically_without_its_base(kind: str, bases, tmp_path: Path) -> None:
    base = shutil.copytree(bases[kind], tmp_path / "base")
    straight = train(tmp_path, "whole", f'from = "{base}"')
    stopped = train(tmp_path, "stopped", f'from = "{base}"', 4)
    shutil.rmtree(base)
    resume(stopped, quiet=True, overrides=["train.max_steps=9"])
    for name in FILES:
        last = [(run / "checkpoint-9" / name).read_bytes() for run in (straight, stopped)]
        assert last[0] == last[1], name


def test_dropout_acts_from_the_first_step(base: Path, tmp_path: Path) -> None:
    """The same weights differ at once with and without dropout."""
    folder = checkpoint.best(base)[0]
    still = tmp_path / "still"
    regard.load(folder).save(still)
    config = json.loads((still / "config.json").read_text())
    (still / "config.json").write_text(json.dumps(config | {"dropout": 0.0}))
    options = ("train.eval_steps=100", "train.ema_decay=0")
    runs = [
        train(tmp_path, f"from-{weights.name}", f'from = "{weights}"', 1, "train.warmup_steps=0", *options)
        for weights in (folder, still)
    ]
    one, other = (load_file(run / "checkpoint-1" / "training.safetensors") for run in runs)
    assert any(not torch.equal(one[name], other[name]) for name in one if name.startswith("weights/"))


def test_weights_are_found_as_by_load_and_recorded_with_their_path(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("REGARD_WEIGHTS", str(base.parent))
    run = train(tmp_path / "base", "tuned", 'from = "base"', 1)
    best = checkpoint.best(base)[0]
    assert load_recipe(run / "recipe.toml").model == {"from": str(best.resolve())}
    (best / "model.safetensors").write_bytes(b"harmed")
    with pytest.raises(UserError, match=r"model\.safetensors: 6 bytes instead of"):
        train(tmp_path, "again", f'from = "{best}"', 1)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("key", "message"),
    [("family='seq2seq'", r"model\.family = 'seq2seq'.*is a transformer"), ("width=14", r"remove model\.width")],
)
def test_options_that_contradict_the_weights_are_errors(base: Path, tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(tmp_path, "tuned", f'from = "{base}"', 1, f"model.{key}")
    assert not (tmp_path / "tuned").exists()


def test_decode_options_are_inherited_and_the_recipe_overrides_them(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    regard.load(base).save(folder)
    path = folder / "generation_config.json"
    theirs = json.loads(path.read_text()) | {"num_beams": 4, "bad_words_ids": [[7]], "length_penalty": 2.0}
    path.write_text(json.dumps(theirs))
    run = train(tmp_path, "tuned", f'from = "{folder}"', 1, "decode.length_penalty=0.5")
    config = json.loads((run / "checkpoint-1" / "generation_config.json").read_text())
    assert config == theirs | {"length_penalty": 0.5}
    run = train(tmp_path, "sampled", f'from = "{folder}"', 1, "decode.temperature=0.7")
    assert regard.load(run).predictor().decode_options().temperature == 0.7


def test_a_run_is_trained_by_one_process(base: Path) -> None:
    before = sorted(base.iterdir())
    with lock(base), pytest.raises(UserError, match=f"base is being trained by process {os.getpid()}"):
        resume(base, quiet=True)
    assert sorted(base.iterdir()) == before
    (base / ".lock").write_text("1")  # of a process that was killed
    assert resume(base, quiet=True).status == "finished"
    assert sorted(base.iterdir()) == before


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("ema_decay = 0.9", "ema_decay = 0.0", "train.ema_decay"),
        ("width = 12", "width = 24", "model.width"),
        ("depth = 1", "depth = 2", "model.depth"),
        ("batch_size = 11", "batch_size = 12", "train.batch_size"),
        ("seed = 1", "seed = 2", "seed"),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_the_fixed_options_of_a_run_cannot_be_changed(base: Path, old: str, new: str, key: str, recorded: bool) -> None:
    recipe, environment = base / "recipe.toml", base / "environment.json"
    recipe.write_text(recipe.read_text().replace(old, new, 1))
    if not recorded:  # by an older version: then the state shows what does not fit
        then = json.loads(environment.read_text())
        del then["recipe"]
        environment.write_text(json.dumps(then))
        if key in ("train.batch_size", "seed"):
            return
        key = key if key.startswith("train") else "[model]"
    with pytest.raises(UserError) as error:
        resume(base, quiet=True)
    assert f"{key} " in str(error.value)


def test_a_resumed_run_can_be_longer_and_records_its_options(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for change in ("model.width=24", "train.ema_decay=0", "train.threads=2", "output=other", "decode.num_beams=2"):
        with pytest.raises(UserError, match=change.partition("=")[0]):
            resume(base, overrides=[change])
    with pytest.raises(UserError, match=r"did you mean 'train\.max_steps'"):
        resume(base, overrides=["train.max_step=7"])
    with pytest.raises(SystemExit) as left:
        main(["resume", str(base), "train.epochs=1", "train.keep=1", "--json"])
    assert left.value.code == 0
    assert json.loads(capfd.readouterr().out)["steps"] == 10  # of 101 samples, 11 at a time
    options = load_recipe(base / "recipe.toml").train
    assert (options.max_steps, options.epochs, options.keep) == (0, 1.0, 1)
    assert resume(base, quiet=True).progress.step == 10
    assert resume(base, quiet=True, overrides=["train.epochs=1.2"]).progress.step == 12
