"""A run killed at any moment, several times, ends with the very weights of the run that was never stopped.

REGARD_KILL_SEED=n repeats the moments of an earlier run: the number is printed with a failure.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from regard.config.recipe import load_recipe
from regard.training import build as session
from regard.training import checkpoint

STEPS, LONG = 31, 307  # the sample's, the storm's
RECIPE = """
task = "translate"
[data]
generate = "dates"
train = 211
validation = 5
[tokenizer]
kind = "characters"
vocab_size = 97
{model}
dropout = 0.3
[train]
batch_size = 7
gradient_accumulation_steps = 2
ema_decay = 0.9
max_steps = {steps}
learning_rate = 3e-3
schedule = "cosine"
warmup_steps = 5
score = "chrf"
eval_steps = 11
save_steps = 3
log_steps = 1
keep = 2
threads = {threads}
"""
MODELS = {
    "rnn": '[model]\nfamily = "seq2seq"\nscore = "additive"\nembedding = 11\nwidth = 14\ndepth = 2',
    "transformer": '[model]\nfamily = "transformer"\nwidth = 12\nheads = 3\ndepth = 2\nfeedforward = 17',
    "convs2s": '[model]\nfamily = "convs2s"\nembedding = 11\nwidth = 14\ndepth = 2',
}

PROGRAM = """
import shutil, sys, time

delete = shutil.rmtree


def slow(*arguments, **options):
    time.sleep(0.02)  # so that a deletion is seen from outside, also on a busy machine
    delete(*arguments, **options)


shutil.rmtree = slow
from regard.cli.main import main

main(sys.argv[1:])
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def go_on(recipe: Path, run: Path) -> subprocess.Popen[str]:
    """As a person would: `resume` where there is a run, else `train` once more."""
    if (run / "recipe.toml").is_file():
        return start("resume", run)
    return start("train", recipe, f"output={run}")


def finish(process: subprocess.Popen[str]) -> str:
    try:
        _, stderr = process.communicate(timeout=3600)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    return stderr


def digest(run: Path, steps: int) -> dict[str, str]:
    """The sha256 of what a run ends with: the model, the training state, and which step was best."""
    last = run / f"checkpoint-{steps}"
    files = last / "model.safetensors", last / "training.safetensors", run / "best.json"
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def reached(run: Path) -> int:
    """The step that was logged last."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    complete = [line for line in lines if line.endswith("}")]
    return json.loads(complete[-1])["step"] if complete else 0


def seeded() -> random.Random:
    seed = int(os.environ.get("REGARD_KILL_SEED") or random.SystemRandom().randrange(10**6))
    print(f"REGARD_KILL_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, dict[str, str]]]:
    """The recipe of a model, and how its run ends when nobody disturbs it; each is trained once."""

    @cache
    def train(model: str, steps: int, threads: int = 1) -> tuple[Path, dict[str, str]]:
        folder = tmp_path_factory.mktemp(f"{model}-{threads}")
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE.format(model=MODELS[model], steps=steps, threads=threads))
        session.start(load_recipe(recipe, [f"output={folder / 'whole'}"]), quiet=True)
        return recipe, digest(folder / "whole", steps)

    return train


def kill_when(process: subprocess.Popen[str], moment: Callable[[], bool], after: float = 0.0) -> bool:
    """SIGKILL at the moment, and so many seconds after; False where the process was faster and had ended."""
    while process.poll() is None and not moment():
        time.sleep(0.005)
    time.sleep(after)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def interrupt_when(process: subprocess.Popen[str], moment: Callable[[], bool], run: Path) -> None:
    """Ctrl-C at the moment: the step is saved, and the resume command is printed."""
    while process.poll() is None and not moment():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    newest, refused = checkpoint.newest(run)
    assert newest is not None
    assert not refused
    message = f"stopped at step {newest.name.removeprefix('checkpoint-')}; resume with: regard resume {run}"
    assert message in stderr.splitlines()


@pytest.mark.parametrize(
    ("model", "threads", "stops"), [("rnn", 1, "kill kill kill"), ("transformer", 2, "kill ctrl-c kill")]
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    model: str, threads: int, stops: str, uninterrupted, tmp_path: Path
) -> None:
    recipe, expected = uninterrupted(model, STEPS, threads)
    run, rng = tmp_path / "run", seeded()
    for stop in stops.split():
        target = reached(run) + rng.randint(1, 6)
        process = go_on(recipe, run)
        if stop == "kill":
            assert kill_when(process, lambda target=target: reached(run) >= target, rng.random() * 0.03)
        else:
            interrupt_when(process, lambda target=target: reached(run) >= target, run)
    assert max(checkpoint.steps(run), default=0) < STEPS
    finish(go_on(recipe, run))
    assert digest(run, STEPS) == expected
    assert not list(run.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_many_kills_change_nothing(model: str, threads: int, uninterrupted, tmp_path: Path) -> None:
    """Kills while it starts, between steps, while a checkpoint is written, and while an old one is deleted."""
    recipe, expected = uninterrupted(model, LONG, threads)
    run, rng = tmp_path / "run", seeded()
    hit = dict.fromkeys(("starting", "working", "writing", "deleting"), 0)
    for index in range(24):
        kind = list(hit)[index % 4]
        target = reached(run) + 1
        moments: dict[str, tuple[Callable[[], bool], float]] = {
            "starting": (lambda: True, rng.random() * 3),
            "working": (lambda target=target: reached(run) >= target, rng.random() * 0.2),
            "writing": (lambda: any(run.glob(".unfinished-write-*")), rng.random() * 0.03),
            "deleting": (lambda: any(run.glob(".unfinished-delete-*")), 0.0),
        }
        hit[kind] += kill_when(go_on(recipe, run), *moments[kind])
    print(hit)
    assert min(hit.values()) >= 4
    assert max(checkpoint.steps(run)) < LONG
    finish(go_on(recipe, run))
    assert digest(run, LONG) == expected
    assert not list(run.glob(".*"))
