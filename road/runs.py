"""The runs of the compared models: which exist, which are finished, and training those that are not."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.config.recipe import Recipe, load_recipe
from regard.errors import UserError
from regard.tasks.translate.dataset import file_of
from regard.training import checkpoint
from road.plan import Experiment
from road.settings import changes, settings

LOCK = ".road"
SECONDS_BETWEEN_LINES = 60.0  # of progress, where several runs share the screen


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Job:
    """A model with its recipe, and the folder of its run."""

    experiment: Experiment
    recipe: Recipe
    run: Path

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def state(self) -> Literal["not begun", "begun", "finished"]:
        if not (self.run / "recipe.toml").is_file():
            return "not begun"
        return "finished" if is_finished(self.run, self.recipe.train.patience) else "begun"


def job(experiment: Experiment, runs: Path) -> Job:
    """The model's job, once its data files are found."""
    recipe = load_recipe(experiment.recipe)
    for split in ("train", "validation", "test"):
        if not recipe.data.synthetic and getattr(recipe.data, split):
            file_of(recipe.data, split, Path(recipe.origin))
    return Job(experiment, recipe, runs / experiment.name)


def refuse_another(job: Job) -> None:
    """A run must have been trained by the present recipe, whether it is measured or resumed."""
    path = job.run / "recipe.toml"
    differing = changes(settings(load_recipe(path)), settings(job.recipe)) if path.is_file() else {}
    if differing:
        changed = ", ".join(f"{key} was {then!r} and is {now!r}" for key, (then, now) in differing.items())
        raise UserError(
            f"{job.run} was trained by another recipe than {job.experiment.recipe} is now: {changed}. "
            "Move the folder away to train it again, or give another --runs"
        )


def is_finished(run: Path, patience: int) -> bool:
    """Whether the newest whole checkpoint is the end: every step taken and scored, and the best one pointed to."""
    newest, _ = checkpoint.newest(run)
    if newest is None:
        return False
    progress = json.loads((newest / "training.json").read_text(encoding="utf-8"))
    ended = 0 < progress["max_steps"] <= progress["step"] == progress["evaluated"]
    impatient = 0 < patience <= progress["waited"]
    return (ended or impatient) and progress["best_step"] == _pointed_to(run)


def _pointed_to(run: Path) -> int | None:
    path = run / "best.json"
    return json.loads(path.read_text(encoding="utf-8"))["step"] if path.is_file() else None


@contextmanager
def alone(runs: Path) -> Iterator[int]:
    """An exclusive lock on the folder; yields its file descriptor, which a run inherits and keeps.

    Should this process be killed, the next one waits for the run that goes on without it, and repeats nothing of it.
    """
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: {runs} is in use by another `python -m road`, or by a run that one started")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def train(jobs: Sequence[Job], at_once: int, lock: int) -> list[str]:
    """Start or resume each run, `at_once` in parallel; returns the names of those that failed."""
    waiting, running, failed = list(jobs), list[Running](), list[str]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                chosen = waiting.pop(0)
                say(f"training {len(jobs) - len(waiting)} of {len(jobs)}: {chosen.name}; {len(waiting)} left after it")
                running.append(_start(chosen, at_once > 1, lock))
            time.sleep(0.1)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                if not _succeeded(each):
                    failed.append(each.job.name)
            if at_once > 1:
                _report(running)
    finally:
        _stop(running)
    return failed


@dataclass
class Running:
    """A job in progress, and when it was last reported."""

    job: Job
    process: subprocess.Popen[bytes]
    reported: float


def _start(job: Job, shared: bool, lock: int) -> Running:
    """`regard train` or `regard resume`, out of the terminal's reach: a Ctrl-C is passed on once, and once only."""
    words = ["resume", str(job.run)] if job.state == "begun" else ["train", job.experiment.recipe, f"output={job.run}"]
    if shared:
        words += ["--quiet"] + (["train.threads=1"] if words[0] == "train" else [])
    command = [sys.executable, "-m", "regard", *words]
    return Running(job, subprocess.Popen(command, start_new_session=True, pass_fds=[lock]), time.monotonic())


def _succeeded(ended: Running) -> bool:
    """Whether a run that ended is finished; one that somebody stopped by itself stops everything."""
    if ended.process.returncode == 130:
        raise KeyboardInterrupt
    done = ended.process.returncode == 0 and ended.job.state == "finished"
    say(f"{ended.job.name}: {'trained' if done else 'failed; the others continue'}")
    return done


def _report(running: Sequence[Running]) -> None:
    """A line on each run, now and then."""
    for each in running:
        if time.monotonic() - each.reported > SECONDS_BETWEEN_LINES:
            each.reported = time.monotonic()
            say(f"{each.job.name}: {progress(each.job.run)}")


def _stop(running: Sequence[Running]) -> None:
    """Let each save and leave; a second Ctrl-C meanwhile ends them at once."""
    for each in running:
        each.process.send_signal(signal.SIGINT)
    try:
        for each in running:
            each.process.wait()
    except KeyboardInterrupt:
        for each in running:
            each.process.kill()
        raise


def progress(run: Path) -> str:
    """A line on where a run is, from its journal."""
    steps = [line for line in journal(run) if "loss" in line]
    if not steps:
        return "preparing"
    last = steps[-1]
    return (
        f"step {last['step']}, epoch {last['epoch']:.2f}, loss {last['loss']:.3f}, {last['seconds'] / 60:.0f} minutes"
    )


def journal(run: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl; the last may be being written."""
    path, results = run / "metrics.jsonl", list[dict[str, Any]]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with suppress(ValueError):
            results.append(json.loads(line))
    return results
