"""Checkpoints are complete or refused by name; a killed run resumes bit-identically."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor, nn
from toy import ToyBatch, ToyTask, digest, go, make_recipe

from regard.errors import UserError
from regard.training import checkpoint
from regard.training.run_folder import open_run, start_run

OPTIONS = ("train.max_steps=61", "train.save_steps=5", "train.eval_steps=7", "train.ema_decay=0.9", "train.keep=2")
OPTIONS += ("train.learning_rate=0.01", "train.warmup_steps=11", "train.schedule=cosine")
TOY = Path(__file__).parents[1] / "toy.py"


def start(run: Path, *, sleep: float = 0.0) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(TOY.parent.parent), "TOY_SLEEP": str(sleep), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TOY), str(run), *OPTIONS]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(run: Path) -> str:
    process = start(run)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return output


def wait_for_step(run: Path, step: int, process: subprocess.Popen) -> None:
    while max(checkpoint.steps(run), default=0) < step and process.poll() is None:
        time.sleep(0.01)


def test_killed_at_random_moments_and_resumed_gives_the_same_bits(tmp_path: Path) -> None:
    complete, killed = tmp_path / "complete", tmp_path / "killed"
    _, network = go(complete, *OPTIONS, "train.threads=1")
    rng = random.Random(os.getpid())
    for step in (1, 11, 38):
        process = start(killed, sleep=0.01)
        wait_for_step(killed, step, process)
        time.sleep(rng.random() * 0.15)
        process.kill()
        process.communicate()
    assert max(checkpoint.steps(killed)) < 61
    assert finish(killed) == f"finished {digest(network)}\n"
    for name in ("model.safetensors", "training.safetensors"):
        last = [(run / "checkpoint-61" / name).read_bytes() for run in (complete, killed)]
        assert last[0] == last[1]
    logged = [
        [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (complete, killed)
    ]
    assert logged[0] == logged[1]
    assert not list(killed.glob(".*"))


class Troubled(ToyTask):
    """Something happens in the loss of one batch, or in one evaluation."""

    def __init__(self, happen: Callable[[], None], batch: int = -1, evaluation: int = -1) -> None:
        super().__init__(11)
        self.happen, self.at_batch, self.at_evaluation = happen, batch, evaluation

    def loss(self, network: nn.Module, batch: ToyBatch) -> Tensor:
        if int(batch.indices[0]) // 1000 == self.at_batch:
            self.happen()
        return super().loss(network, batch)

    def validate(self, network: nn.Module) -> dict[str, float]:
        self.at_evaluation -= 1
        if self.at_evaluation == -1:
            self.happen()
        return super().validate(network)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run that nothing disturbed."""
    return digest(go(tmp_path_factory.mktemp("complete") / "run", *OPTIONS)[1])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("where", "step"), [({"batch": 16}, 17), ({"evaluation": 2}, 21), ({"batch": 60}, 61)])
def test_a_signal_saves_the_current_step_and_the_run_resumes(tmp_path, expected: str, signum, where, step: int) -> None:
    handler = signal.getsignal(signum)
    task = Troubled(lambda: os.kill(os.getpid(), signum), **where)
    outcome, _ = go(tmp_path / "run", *OPTIONS, task=task)
    assert outcome.status == "interrupted"
    assert signal.getsignal(signum) == handler
    folder, refused = checkpoint.newest(tmp_path / "run")
    assert (folder, refused) == (tmp_path / "run" / f"checkpoint-{step}", [])
    outcome, network = go(tmp_path / "run", *OPTIONS)
    assert (outcome.status, outcome.progress.evaluated) == ("finished", 61)
    assert digest(network) == expected


@pytest.mark.parametrize("where", [{"batch": 2}, {"batch": 37}, {"evaluation": 1}, {"evaluation": 8}])
def test_a_crash_anywhere_changes_no_result(tmp_path: Path, expected: str, where) -> None:
    def crash() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        go(tmp_path / "run", *OPTIONS, task=Troubled(crash, **where))
    assert digest(go(tmp_path / "run", *OPTIONS)[1]) == expected


def test_a_finished_run_is_not_continued(tmp_path: Path) -> None:
    _, first = go(tmp_path / "run", *OPTIONS)
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors"))
    outcome, second = go(tmp_path / "run", *OPTIONS)
    assert outcome.status == "finished"
    assert digest(first) == digest(second)
    assert before == sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncated", "altered", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path: Path, name: str, harm: str) -> None:
    run = tmp_path / "run"
    _, expected = go(run, *OPTIONS)
    victim = run / "checkpoint-61" / name
    content = bytearray(victim.read_bytes())
    if harm == "missing":
        victim.unlink()
    elif harm == "truncated":
        victim.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1 if name != "manifest.json" else 0x80
        victim.write_bytes(content)
    with pytest.raises(UserError) as error:
        checkpoint.verify(run / "checkpoint-61")
    assert name in str(error.value) or name == "manifest.json"
    folder, refused = checkpoint.newest(run)
    assert folder is not None
    assert folder != run / "checkpoint-61"
    assert len(refused) == 1
    outcome, again = go(run, *OPTIONS)
    assert outcome.status == "finished"
    assert digest(again) == digest(expected)
    checkpoint.verify(run / "checkpoint-61")


def fill(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("text")
    for name in checkpoint.REQUIRED:
        (folder / name).write_text(name)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (2, 3, 5, 7, 11):
        checkpoint.write(tmp_path, step, fill)
    checkpoint.point_to_best(tmp_path, 3, 0.5)
    checkpoint.prune(tmp_path, keep=2, step=11, best_step=3)
    assert checkpoint.steps(tmp_path) == [3, 7, 11]
    assert checkpoint.best(tmp_path) == (tmp_path / "checkpoint-3", [])


def test_the_newest_replaces_a_damaged_best_and_each_is_named(tmp_path: Path) -> None:
    for step in (3, 7, 11):
        checkpoint.write(tmp_path, step, fill)
    checkpoint.point_to_best(tmp_path, 3, 0.5)
    (tmp_path / "checkpoint-3" / "deep" / "file").write_text("tex")
    folder, refused = checkpoint.best(tmp_path)
    assert folder == tmp_path / "checkpoint-11"
    assert len(refused) == 1
    assert "checkpoint-3" in refused[0]
    assert "3 bytes instead of 4" in refused[0]
    (tmp_path / "best.json").write_text("{")
    folder, refused = checkpoint.best(tmp_path)
    assert folder == tmp_path / "checkpoint-11"
    assert refused == [f"{tmp_path / 'best.json'}: unreadable; it should name the best step"]


def test_a_damaged_later_checkpoint_does_not_displace_a_complete_one(tmp_path: Path) -> None:
    for step in (5, 7, 11):
        checkpoint.write(tmp_path, step, fill)
    checkpoint.prune(tmp_path, keep=1, step=7, best_step=None)
    assert checkpoint.steps(tmp_path) == [7, 11]


def test_a_failed_write_leaves_no_checkpoint(tmp_path: Path) -> None:
    def break_off(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    checkpoint.write(tmp_path, 5, fill)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, 7, break_off)
    assert checkpoint.newest(tmp_path) == (tmp_path / "checkpoint-5", [])
    checkpoint.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("a.safetensors: cannot be written (full)"), "a.safetensors: cannot be written (full)"),
        (OSError(28, "No space left", "a.json"), "a.json: cannot be written (No space left)"),
        (OSError(28, "No space left"), "{aside}: cannot be written (No space left)"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_once(error: Exception, message: str, tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise error

    with pytest.raises(UserError) as caught:
        checkpoint.write(tmp_path, 5, fail)
    expected = message.format(aside=tmp_path / ".unfinished-write-5")
    assert str(caught.value) == f"{expected}; the checkpoints before it are untouched"


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"files": []}', '{"files": {}}', '{"files": {"config.json": 3}}', "\xff"]
)
def test_an_invalid_manifest_makes_no_complete_checkpoint(tmp_path: Path, text: str) -> None:
    folder = checkpoint.write(tmp_path, 5, fill)
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="is incomplete"):
        checkpoint.verify(folder)


@pytest.mark.parametrize("name", checkpoint.REQUIRED)
def test_a_manifest_names_all_that_a_resume_needs(tmp_path: Path, name: str) -> None:
    path = checkpoint.write(tmp_path, 5, fill) / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"][name]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=f"does not list {name}"):
        checkpoint.verify(path.parent)


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_rewritten_checkpoint_is_complete_at_every_moment(tmp_path: Path, monkeypatch, renames: int) -> None:
    """A kill after so many renames leaves the old one or the new one."""
    checkpoint.write(tmp_path, 5, fill)
    left, rename, rmtree = iter(range(renames)), Path.rename, checkpoint.shutil.rmtree

    def rename_or_die(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    def remove_or_die(path: Path, **options) -> None:
        if path.exists() and renames == 2:
            raise KeyboardInterrupt
        rmtree(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_or_die)
        patch.setattr(checkpoint.shutil, "rmtree", remove_or_die)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write(tmp_path, 5, fill)
    checkpoint.sweep(tmp_path)
    assert checkpoint.newest(tmp_path) == (tmp_path / "checkpoint-5", [])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_a_run_resumes_from_a_checkpoint_that_was_not_yet_renamed(tmp_path: Path, expected: str) -> None:
    run = tmp_path / "run"
    go(run, *OPTIONS)
    for step in checkpoint.steps(run)[:-1]:
        checkpoint.remove(checkpoint.folder_of(run, step))
    (run / "checkpoint-61").rename(run / f"{checkpoint.ASIDE}old-61")
    before = (run / f"{checkpoint.ASIDE}old-61" / "manifest.json").stat().st_mtime_ns
    assert digest(go(run, *OPTIONS)[1]) == expected
    assert (run / "checkpoint-61" / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(("evaluation", "step"), [(4, 35), (8, 61)])
def test_an_evaluation_that_fails_costs_no_steps(tmp_path: Path, expected: str, evaluation: int, step: int) -> None:
    def crash() -> None:
        raise MemoryError

    run = tmp_path / "run"
    with pytest.raises(MemoryError):
        go(run, *OPTIONS, task=Troubled(crash, evaluation=evaluation))
    folder, _ = checkpoint.newest(run)
    assert folder == run / f"checkpoint-{step}"
    assert digest(go(run, *OPTIONS)[1]) == expected


def test_a_run_without_checkpoints_has_no_best(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint yet"):
        checkpoint.best(tmp_path)


def test_an_existing_run_is_an_error_with_the_resume_command(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path / "a run")
    folder = start_run(recipe)
    assert open_run(folder) == recipe
    with pytest.raises(UserError) as error:
        start_run(recipe)
    assert f"`regard resume '{folder}'`" in str(error.value)
    with pytest.raises(UserError, match="not a run folder"):
        open_run(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(UserError, match="not a run"):
        start_run(make_recipe(tmp_path / "other"))
