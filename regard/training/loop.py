"""The one training loop: batches in, better weights out; stopped at any moment it goes on exactly where it was."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.layers.pytree import to_device
from regard.runtime import machine
from regard.runtime.device import choose_device
from regard.runtime.threads import with_threads
from regard.tasks.base import TrainingTask
from regard.training import checkpoint, distributed
from regard.training import resume as state
from regard.training.display import SHOWN_SAMPLES, SPEED, Display
from regard.training.layerwise import GradualUnfreezing
from regard.training.microbatches import Gradients, pieces_for
from regard.training.optim import EMA, AdamW, learning_rate
from regard.training.resume import Progress
from regard.training.run_folder import MetricsLog, resume_command, settle_environment
from regard.training.signals import Interrupt

MEASURED_STEPS = 50  # after these a budget of minutes becomes a number of steps
EVALUATION_SHARE = 0.1  # of a budget of minutes; evaluations are spaced out where they would take more
SKIPS_ALLOWED = 2  # updates in a row lost to a loss or gradient that is not finite


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `interrupted` means that `regard resume` goes on with it."""

    status: Literal["finished", "out of patience", "interrupted"]
    progress: Progress
    score: str  # what its best score is called


def train(
    network: nn.Module,
    task: TrainingTask,
    recipe: Recipe,
    run: Path,
    write_model: Callable[[Path], None],
    display: Display | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train from where the run folder stands: from the start, or from its newest whole checkpoint."""
    device = choose_device(recipe.train.device)
    with distributed.group(device) as group, Interrupt() as interrupt, display or Display() as shown:
        threads, warnings = settle_environment(
            run, machine.choose_threads(recipe.train.threads), task.fingerprint, recipe
        )
        torch.set_num_threads(threads)
        machine.keep_memory()
        network.to(device)
        group.share_weights(network)
        loop = Loop(network, task, recipe, run, write_model, group, shown)
        for warning in [*warnings, *loop.recover()]:
            shown.warn(warning)
        with machine.uncounted(), with_threads(loop.threads // loop.pieces):
            return loop.go_on(interrupt, clock)


class Loop:
    """One run at work: the network, what improves it, and where it stands."""

    def __init__(
        self,
        network: nn.Module,
        task: TrainingTask,
        recipe: Recipe,
        run: Path,
        write_model: Callable[[Path], None],
        group: distributed.Group,
        display: Display,
    ) -> None:
        self.network, self.task, self.options, self.seed = network, task, recipe.train, recipe.seed
        self.run, self.write_model, self.group, self.display = run, write_model, group, display
        reduced = self.options.precision == "bfloat16" or (
            self.options.precision == "auto" and group.device.type == "cuda"
        )
        self.autocast = torch.autocast(group.device.type, torch.bfloat16) if reduced else nullcontext()
        self.threads = torch.get_num_threads()
        self.pieces = 1 if reduced or task.indivisible else pieces_for(network, group.device)
        self.optimizer = AdamW(network, self.options, self.pieces)
        self.average = EMA(network, self.options.average_decay, self.pieces)
        self.thaw = GradualUnfreezing(network, self.options.unfreeze_steps)
        self.progress = Progress()
        self.saved = (0, 0)
        self.window = Window()
        self.gradients = Gradients(network, task, self.seed, self.autocast, self.pieces)

    def recover(self) -> list[str]:
        """Load the newest whole checkpoint, if there is one; gives what was wrong with newer ones."""
        if self.group.first:
            checkpoint.sweep(self.run)
        self.group.agree(0)  # all read what the first process has tidied up
        folder, refused = checkpoint.newest(self.run)
        if folder:
            self.progress = state.load(folder, self.network, self.optimizer, self.average)
        progress, options = self.progress, self.options
        self.saved = (progress.step, progress.evaluated)
        progress.batch -= progress.batch % self.group.world  # there may be more processes than before
        progress.max_steps = options.max_steps or self.epochs_in_steps() or self.minutes_in_steps()
        if self.group.first:
            if progress.best_step is not None and progress.best_score is not None:
                checkpoint.point_to_best(self.run, progress.best_step, progress.best_score)
            self.journal = MetricsLog(self.run, progress, options.tensorboard)
        return refused

    def go_on(self, interrupt: Interrupt, clock: Callable[[], float]) -> Outcome:
        """Step, save and evaluate until the run is finished, out of patience or interrupted."""
        progress, options = self.progress, self.options
        self.network.train()
        batches = self.task.batches(progress.batch // self.group.world, self.group.rank, self.group.world)
        began = clock() - progress.seconds
        self.window.began = progress.seconds
        if self.group.first and progress.max_steps and progress.step >= progress.max_steps:
            more = f"{resume_command(self.run)} train.max_steps={2 * progress.step}"
            self.display.note(f"the run has ended at step {progress.step}; to go on beyond it: {more}")
        while True:
            if self.group.first and not interrupt.requested and self.evaluation_is_due():
                self.save_if_due(progress.step == progress.max_steps)  # an evaluation that fails costs no steps
                self.evaluate(interrupt, clock)
                progress.seconds = clock() - began
            interrupted, max_steps, waited = self.group.agree(interrupt.requested, progress.max_steps, progress.waited)
            progress.max_steps, progress.waited = int(max_steps), int(waited)
            finished = bool(max_steps) and progress.step >= max_steps
            impatient = bool(options.patience) and waited >= options.patience
            if self.group.first:
                self.save_if_due(bool(interrupted) or finished or impatient)
            if finished or impatient or interrupted:
                break
            self.step(batches)
            progress.seconds = clock() - began
            if self.group.first:
                self.fix_length()
                self.log()
        if self.group.first:
            self.journal.close()
        if interrupted:
            self.display.note(f"stopped at step {progress.step}; go on with: {resume_command(self.run)}")
            return Outcome("interrupted", progress, self.task.score_name)
        status = "out of patience" if impatient and not finished else "finished"
        return Outcome(status, progress, self.task.score_name)

    def step(self, batches: Iterator[Any]) -> None:
        """One update from several batches: the gradient of their summed loss over all their targets together."""
        group, progress, options = self.group, self.progress, self.options
        taken = list(islice(batches, options.gradient_accumulation_steps))
        numbers = [progress.batch + group.rank + group.world * place for place in range(len(taken))]
        count = int(group.total(torch.tensor(sum(map(self.task.num_targets, taken)), device=group.device)))
        loss = torch.zeros((), device=group.device)
        self.thaw(progress.step)
        for number, batch in zip(numbers, taken, strict=True):
            loss += self.gradients.add(to_device(batch, group.device), number, count)
        group.sum_gradients(self.network)
        norm = self.optimizer.norm()
        progress.step += 1
        progress.batch += len(taken) * group.world
        self.window.rate = learning_rate(progress.step, options, progress.max_steps)
        self.window.add(float(group.total(loss)), norm, count)
        if self.window.finite:
            most = options.max_grad_norm or math.inf
            self.optimizer.step(self.window.rate, max(1.0, norm / most))  # Pascanu et al. 2013: no longer than `most`
            self.average.update(progress.step)
            progress.skipped = 0
        else:
            self.skip(numbers, taken)
        self.optimizer.forget()

    def skip(self, numbers: list[int], taken: list[Any]) -> None:
        """Lose an update that is not finite and say on which samples; the third in a row ends the run."""
        progress, window = self.progress, self.window
        progress.skipped += 1
        samples = [int(sample) for batch in taken for sample in batch.index]
        what = f"loss {window.loss}, gradient norm {window.norm} at step {progress.step}, batches {numbers}"
        if self.group.first:
            told = {"loss": str(window.loss), "gradient_norm": str(window.norm), "batches": numbers, "samples": samples}
            self.journal.write(progress.step, {"skipped": told})
        self.display.warn(f"update skipped: {what}, samples {samples}")
        if progress.skipped > SKIPS_ALLOWED:
            raise UserError(
                f"{progress.skipped} updates in a row were not finite ({what}); the last checkpoint is untouched. "
                f"Lower train.learning_rate or look at these samples: they are named in {self.run / 'metrics.jsonl'}"
            )

    def evaluation_is_due(self) -> bool:
        """At each eval_steps and at the end; a budget of minutes spaces out what would take too much of it."""
        progress, options = self.progress, self.options
        if progress.step == progress.evaluated:
            return False
        affordable = not options.minutes or progress.evaluating <= EVALUATION_SHARE * progress.seconds
        return progress.step == progress.max_steps or (progress.step % options.eval_steps == 0 and affordable)

    def evaluate(self, interrupt: Interrupt, clock: Callable[[], float]) -> None:
        """Score the averaged weights; a signal breaks it off, and it is done again on resume."""
        progress, began = self.progress, clock()
        self.network.eval()
        try:
            with with_threads(self.threads), self.average.applied(), self.autocast, interrupt.at_once():
                metrics = self.task.validate(self.network)
                samples = self.task.preview(self.network, SHOWN_SAMPLES)
        except KeyboardInterrupt:
            return
        finally:
            self.network.train()
            progress.evaluating += clock() - began
            self.window.began += clock() - began
        progress.evaluated = progress.step
        score = metrics.get(self.task.score_name)
        if score is None:
            return
        best = progress.best_score
        better = best is None or (score > best if self.task.ascending else score < best)
        if better:
            progress.best_step, progress.best_score, progress.waited = progress.step, score, 0
        else:
            progress.waited += 1
        self.journal.write(progress.step, {"validation": metrics, "best": better, "seconds": progress.seconds})
        self.display.evaluation(progress.step, metrics, self.task.score_name, better)
        self.display.samples(samples)

    def save_if_due(self, last: bool) -> None:
        """At each save_steps, at a new best, and at the end; keeps the newest and the best."""
        progress = self.progress
        is_best = progress.best_step == progress.step
        now = (progress.step, progress.evaluated)
        due = progress.step % self.options.save_steps == 0 and progress.step != self.saved[0]
        if now == self.saved or not (last or is_best or due):
            return
        checkpoint.write(self.run, progress.step, self.fill)
        if is_best and progress.best_score is not None:
            checkpoint.point_to_best(self.run, progress.step, progress.best_score)
        checkpoint.prune(self.run, self.options.keep, progress.step, progress.best_step)
        self.saved = now

    def fill(self, folder: Path) -> None:
        """What a checkpoint holds: the model to use, and the state to go on from."""
        with self.average.applied():
            self.write_model(folder)
        state.save(folder, self.progress, self.network, self.optimizer, self.average)

    def fix_length(self) -> None:
        """Turn a budget of minutes into steps, once: written down, so that a resumed run has the same schedule."""
        progress, budget = self.progress, self.options.minutes * 60 * (1 - EVALUATION_SHARE)
        if not budget or progress.max_steps:
            return
        if self.measured_length():
            progress.max_steps = self.minutes_in_steps()
            return
        spent = progress.seconds - progress.evaluating
        if progress.step >= MEASURED_STEPS or spent >= budget:
            progress.max_steps = progress.step + max(0, int((budget - spent) / spent * progress.step))
            length = {"minutes": self.options.minutes, "max_steps": progress.max_steps, "measured_at": progress.step}
            checkpoint.write_atomically(self.run / "length.json", json.dumps(length) + "\n")
            self.display.note(f"{self.options.minutes:g} minutes are {progress.max_steps} steps on this machine")

    def measured_length(self) -> dict[str, Any] | None:
        """What was written down for these minutes."""
        path = self.run / "length.json"
        length = json.loads(path.read_text()) if self.options.minutes and path.is_file() else None
        return length if length and length.get("minutes", self.options.minutes) == self.options.minutes else None

    def minutes_in_steps(self) -> int:
        """The length that was measured, from the step on that measured it; 0 before."""
        length = self.measured_length()
        return length["max_steps"] if length and self.progress.step >= length["measured_at"] else 0

    def epochs_in_steps(self) -> int:
        """The steps taken and those that the rest of the epochs will take; 0 where no epochs are given."""
        progress, options = self.progress, self.options
        rest = max(0, math.ceil(options.epochs * self.task.batches_per_epoch) - progress.batch)
        per_step = options.gradient_accumulation_steps * self.group.world
        return progress.step - (-rest // per_step) if options.epochs else 0

    def log(self) -> None:
        progress = self.progress
        if progress.step % self.options.log_steps == 0 or progress.step in (1, progress.max_steps):
            event = {"epoch": self.task.epoch(progress.batch), **self.window.summary(progress.seconds, self.task.unit)}
            self.journal.write(progress.step, event)
            left = progress.seconds / progress.step * (progress.max_steps - progress.step)
            self.display.step(progress.step, progress.max_steps, event, left if progress.max_steps else None)
            self.window = Window(began=progress.seconds)


@dataclass
class Window:
    """What happened since the last line of the log."""

    began: float = 0.0
    losses: float = 0.0
    steps: int = 0
    targets: int = 0
    loss: float = 0.0  # of the last step, as are norm and rate
    norm: float = 0.0
    rate: float = 0.0

    def add(self, loss: float, norm: float, targets: int) -> None:
        self.loss, self.norm = loss, norm
        if self.finite:
            self.losses, self.steps = self.losses + loss, self.steps + 1
        self.targets += targets

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)

    def summary(self, seconds: float, unit: str) -> dict[str, float]:
        speed = self.targets / max(seconds - self.began, 1e-9)
        mean = self.losses / max(self.steps, 1)
        norm = {"gradient_norm": self.norm} if self.finite else {}
        return {"loss": mean, **norm, "learning_rate": self.rate, f"{unit}{SPEED}": speed, "seconds": seconds}
