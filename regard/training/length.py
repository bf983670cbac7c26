"""How many steps a run takes: as given, by epochs, or as many as a budget of minutes allows on this machine."""

import json
import math
from pathlib import Path

from regard.config.recipe import TrainOptions
from regard.training.checkpoint import write_atomically
from regard.training.display import Display
from regard.training.objective import BatchSource
from regard.training.resume import Progress
from regard.training.run_folder import resume_command

MEASURED_STEPS = 50  # after these, or this share of a budget of minutes, it is converted to steps
MEASURED_SHARE = 0.1
MIN_MEASURED = 3
EVALUATION_SHARE = 0.1  # of a budget of minutes
FEW_STEPS = 100  # below, fine-tuning a published model has hardly begun


class RunLength:
    """Turns epochs or minutes into steps; measured minutes are stored, so that a resumed run has the same schedule."""

    def __init__(self, run: Path, options: TrainOptions, task: str = "") -> None:
        self.path = run / "length.json"
        self.options = options
        self.task = task
        self.spent: list[float] = []  # seconds after each step of this process

    def steps(self, progress: Progress, batches_per_epoch: int, world: int) -> int:
        """The steps of the run; 0 while a budget of minutes has not been measured."""
        options = self.options
        if options.max_steps:
            return options.max_steps
        if options.epochs:
            rest = max(0, math.ceil(options.epochs * batches_per_epoch) - progress.batch)
            return max(options.min_steps, progress.step - (-rest // (options.gradient_accumulation_steps * world)))
        return self._measured(progress) or 0

    def measure(self, progress: Progress) -> bool:
        """Convert a budget of minutes to steps, once enough of them were timed; True when it was done now."""
        budget = self.options.minutes * 60 * (1 - EVALUATION_SHARE)
        if not budget or progress.max_steps:
            return False
        measured = self._measured(progress)
        if measured is not None:
            progress.max_steps = measured
            return False
        spent = progress.seconds - progress.evaluating
        self.spent.append(spent)
        enough = progress.step >= MIN_MEASURED and spent >= MEASURED_SHARE * budget
        if progress.step < MEASURED_STEPS and spent < budget and not enough:
            return False
        slow = len(self.spent) // 2  # the first steps allocate, and take longer than the others
        seconds = (spent - self.spent[slow - 1]) / (len(self.spent) - slow) if slow else spent / progress.step
        progress.max_steps = progress.step + max(0, int((budget - spent) / seconds))
        length = {"minutes": self.options.minutes, "max_steps": progress.max_steps, "measured_at": progress.step}
        write_atomically(self.path, json.dumps(length) + "\n")
        return True

    def report(self, progress: Progress, source: BatchSource, world: int, display: Display) -> None:
        """Report that the run has finished or is too short, what minutes are, and more epochs than the recipe has."""
        options = self.options
        steps = progress.max_steps
        epochs = source.epoch(steps * options.gradient_accumulation_steps * world)
        if 0 < steps <= progress.step:
            command = f"{resume_command(self.path.parent)} train.max_steps={2 * progress.step}"
            display.note(f"the run has finished at step {progress.step}; to train longer: {command}")
        elif options.minutes and steps:
            display.note(f"{options.minutes:g} minutes are {steps} steps here")
        elif 0 < options.epochs < epochs and steps == options.min_steps:
            updates = f"{steps} updates (train.min_steps)"
            display.note(f"small training set: {epochs:.0f} epochs instead of {options.epochs:g}, for {updates}")
        if warning := short_run(steps, options, self.task):
            display.warn(warning)

    def _measured(self, progress: Progress) -> int | None:
        """The length stored for this budget, 0 before the step at which it was measured; None if there is none."""
        minutes = self.options.minutes
        length = json.loads(self.path.read_text()) if minutes and self.path.is_file() else None
        if length is None or length.get("minutes", minutes) != minutes:
            return None
        return length["max_steps"] if progress.step >= length["measured_at"] else 0


def short_run(steps: int, options: TrainOptions, task: str = "") -> str:
    """A warning if epochs or minutes are too few updates to learn from; empty otherwise, and if 0: not known yet."""
    if options.max_steps or not 0 < steps < FEW_STEPS:
        return ""
    length = f"train.epochs = {options.epochs:g}" if options.epochs else f"train.minutes = {options.minutes:g}"
    longer = "thousands of updates, e.g. train.max_steps=5000" if task == "translate" else "e.g. train.max_steps=300"
    few = f"{length} is only {steps} updates, which may be too few to learn from"
    return f"{few}: train longer ({longer}), or with smaller batches"
