"""The training loop: steps, checkpoints and evaluations, resumed exactly where a run was stopped.

    BatchSource ─▶ batches ─▶ Loop.step ─▶ Loop.log
                                 │ every save_steps ─▶ Loop.save      every eval_steps ─▶ Loop.evaluate

`Loop.run` ties them together. Its other methods do not know where batches come from: a dataset, or the network.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
from regard.runtime.machine import choose_device
from regard.runtime.optimize import optimized_for_training
from regard.runtime.threads import torch_threads
from regard.training import checkpoint, distributed, resume
from regard.training.display import SHOWN_SAMPLES, Display
from regard.training.layerwise import GradualUnfreezing
from regard.training.length import EVALUATION_SHARE, RunLength
from regard.training.metrics_log import MetricsLog, Window
from regard.training.microbatches import Gradients, choose_workers
from regard.training.objective import BatchSource, Objective, TrainingTask
from regard.training.optim import EMA, AdamW, learning_rate
from regard.training.resume import Progress
from regard.training.run_folder import check_environment, resume_command
from regard.training.signals import Interrupt

SKIPS_ALLOWED = 2  # updates in a row lost to a loss or gradient that is not finite

Status = Literal["finished", "out of patience", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended; an interrupted one continues with `regard resume`."""

    status: Status
    progress: Progress
    score: str  # the name of the metric behind the best score


@dataclass(frozen=True)
class RunOutput:
    """Where a run writes: its folder, the model in a checkpoint, and the terminal."""

    folder: Path
    write_model: Callable[[Path], None]
    display: Display


def train(
    network: nn.Module,
    task: TrainingTask,
    recipe: Recipe,
    output: RunOutput,
    source: BatchSource | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train from the start, or from the newest complete checkpoint of the run folder; batches come from the task."""
    device = choose_device(recipe.train.device)
    with distributed.group(device) as group, Interrupt() as interrupt, output.display as display:
        threads, warnings = check_environment(
            output.folder, machine.choose_threads(recipe.train.threads), task.fingerprint, recipe
        )
        torch.set_num_threads(threads)
        machine.tune_malloc()
        network.to(device)
        group.share_weights(network)
        loop = Loop(network, task, recipe, output, group, clock)
        for warning in [*warnings, *loop.recover()]:
            display.warn(warning)
        with machine.gc_frozen(), loop.tuned():
            return loop.run(source or task, interrupt)


class Loop:
    """One run: the network, its optimizer, and how far it is."""

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        recipe: Recipe,
        output: RunOutput,
        group: distributed.Group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network = network
        self.objective = objective
        self.options = recipe.train
        self.folder = output.folder
        self.write_model = output.write_model
        self.display = output.display
        self.group = group
        self.clock = clock
        precision = self.options.precision
        reduced = precision == "bfloat16" or (precision == "auto" and group.device.type == "cuda")
        self.autocast = torch.autocast(group.device.type, torch.bfloat16) if reduced else nullcontext()
        self.threads = torch.get_num_threads()
        self.workers = 1 if reduced or objective.indivisible else choose_workers(network, group.device)
        self.optimizer = AdamW(network, self.options)
        self.ema = EMA(network, self.options.ema_decay)
        self.unfreezing = GradualUnfreezing(network, self.options.unfreeze_steps)
        self.gradients = Gradients(network, objective, recipe.seed, self.autocast, self.workers)
        self.length = RunLength(self.folder, self.options, recipe.task)
        self.progress = Progress()
        self.saved = (0, 0)
        self.window = Window()
        self.started = clock()

    @contextmanager
    def tuned(self) -> Iterator[None]:
        """Within it, threads and linear layers are those of training."""
        with torch_threads(self.threads // self.workers), optimized_for_training(self.network):
            yield

    def recover(self) -> list[str]:
        """Load the newest complete checkpoint, if there is one; gives what was wrong with newer ones."""
        if self.group.first:
            checkpoint.sweep(self.folder)
        self.group.agree(0)  # all read what the first process has tidied up
        folder, refused = checkpoint.newest(self.folder)
        if folder:
            self.progress = resume.load(folder, self.network, self.optimizer, self.ema)
        progress = self.progress
        self.saved = (progress.step, progress.evaluated)
        progress.batch -= progress.batch % self.group.world  # there may be more processes than before
        self.started = self.clock() - progress.seconds
        self.window = Window(began=progress.seconds)
        if self.group.first:
            if progress.best_step is not None and progress.best_score is not None:
                checkpoint.point_to_best(self.folder, progress.best_step, progress.best_score)
            self.metrics = MetricsLog(self.folder, progress, self.options.tensorboard)
        return refused

    def run(self, source: BatchSource, interrupt: Interrupt) -> Outcome:
        """Step, save and evaluate until the run is finished, out of patience or interrupted."""
        progress = self.progress
        group = self.group
        progress.max_steps = self.length.steps(progress, source.batches_per_epoch, group.world)
        if group.first:
            self.length.report(progress, source, group.world, self.display)
        batches = source.batches(progress.batch // group.world, group.rank, group.world)
        self.network.train()
        while True:
            if group.first and not interrupt.requested and self.evaluation_is_due():
                self.save(last=progress.step == progress.max_steps)  # an evaluation that fails costs no steps
                self.evaluate(interrupt)
            status = self.agreed_status(interrupt.requested)
            if group.first:
                self.save(last=status is not None)
            if status:
                break
            self.step(list(islice(batches, self.options.gradient_accumulation_steps)))
            if group.first:
                if self.length.measure(progress):
                    self.length.report(progress, source, group.world, self.display)
                self.log(source.epoch(progress.batch))
        if group.first:
            self.metrics.close()
        if status == "interrupted":
            self.display.note(f"stopped at step {progress.step}; resume with: {resume_command(self.folder)}")
        return Outcome(status, progress, self.objective.score_name)

    def agreed_status(self, interrupted: bool) -> Status | None:
        """Whether and why the run ends here, the same for all processes."""
        progress = self.progress
        stop, max_steps, waited = self.group.agree(interrupted, progress.max_steps, progress.waited)
        progress.max_steps = int(max_steps)
        progress.waited = int(waited)
        if stop:
            return "interrupted"
        if progress.max_steps and progress.step >= progress.max_steps:
            return "finished"
        return "out of patience" if 0 < self.options.patience <= progress.waited else None

    def step(self, batches: Sequence[Any]) -> None:
        """One update from these batches: the gradient of their summed loss over all their targets together."""
        group = self.group
        progress = self.progress
        indices = [progress.batch + group.rank + group.world * i for i in range(len(batches))]
        targets = sum(self.objective.num_targets(batch) for batch in batches)
        targets = int(group.total(torch.tensor(targets, device=group.device)))
        loss = torch.zeros((), device=group.device)
        self.unfreezing(progress.step)
        for index, batch in zip(indices, batches, strict=True):
            loss += self.gradients.add(to_device(batch, group.device), index, targets)
        group.sum_gradients(self.network)
        norm = self.optimizer.gradient_norm()
        progress.step += 1
        progress.batch += len(batches) * group.world
        self.window.learning_rate = learning_rate(progress.step, self.options, progress.max_steps)
        self.window.add(float(group.total(loss)), norm, targets)
        if self.window.finite:
            self.optimizer.update(self.window.learning_rate, norm, self.options.max_grad_norm or math.inf)
            self.ema.update(progress.step)
            progress.skipped = 0
        else:
            self.skip(indices, batches)
        self.optimizer.zero_grad()
        progress.seconds = self.clock() - self.started

    def skip(self, indices: list[int], batches: Sequence[Any]) -> None:
        """Skip an update that is not finite and report its samples; the third in a row ends the run."""
        progress = self.progress
        window = self.window
        progress.skipped += 1
        samples = [int(sample) for batch in batches for sample in batch.indices]
        what = f"loss {window.loss}, gradient norm {window.norm} at step {progress.step}, batches {indices}"
        if self.group.first:
            event = {"loss": str(window.loss), "gradient_norm": str(window.norm), "batches": indices}
            self.metrics.write(progress.step, {"skipped": event | {"samples": samples}})
        self.display.warn(f"update skipped: {what}, samples {samples}")
        if progress.skipped > SKIPS_ALLOWED:
            raise UserError(
                f"{progress.skipped} updates in a row were not finite ({what}); the last checkpoint is untouched. "
                f"Lower train.learning_rate or inspect these samples: they are listed in "
                f"{self.folder / 'metrics.jsonl'}"
            )

    def evaluation_is_due(self) -> bool:
        """At each eval_steps and at the end; with a budget of minutes less often if it would take too much of it."""
        progress = self.progress
        if progress.step == progress.evaluated:
            return False
        affordable = not self.options.minutes or progress.evaluating <= EVALUATION_SHARE * progress.seconds
        return progress.step == progress.max_steps or (progress.step % self.options.eval_steps == 0 and affordable)

    def evaluate(self, interrupt: Interrupt | None = None) -> None:
        """Score the averaged weights; a signal aborts it, and it is repeated on resume."""
        progress = self.progress
        objective = self.objective
        began = self.clock()
        self.network.eval()
        try:
            with torch_threads(self.threads), self.ema.applied(), self.autocast, (interrupt or Interrupt()).at_once():
                metrics = objective.validate(self.network)
                samples = objective.preview(self.network, SHOWN_SAMPLES)
        except KeyboardInterrupt:
            return
        finally:
            self.network.train()
            seconds = self.clock() - began
            progress.evaluating += seconds
            self.window.began += seconds
            progress.seconds = self.clock() - self.started
        progress.evaluated = progress.step
        score = metrics.get(objective.score_name)
        if score is None:
            return
        best = progress.best_score
        better = best is None or (score > best if objective.ascending else score < best)
        if better:
            progress.best_step = progress.step
            progress.best_score = score
        progress.waited = 0 if better else progress.waited + 1
        self.metrics.write(progress.step, {"validation": metrics, "best": better, "seconds": progress.seconds})
        self.display.evaluation(progress.step, metrics, objective.score_name, better)
        self.display.samples(samples)

    def save(self, last: bool = False) -> None:
        """Write a checkpoint if it is due: at each save_steps, at a new best, at the end; keeps the newest and best."""
        progress = self.progress
        is_best = progress.best_step == progress.step
        now = (progress.step, progress.evaluated)
        due = progress.step % self.options.save_steps == 0 and progress.step != self.saved[0]
        if now == self.saved or not (last or is_best or due):
            return
        checkpoint.write(self.folder, progress.step, self.write_checkpoint)
        if is_best and progress.best_score is not None:
            checkpoint.point_to_best(self.folder, progress.step, progress.best_score)
        checkpoint.prune(self.folder, self.options.keep, progress.step, progress.best_step)
        self.saved = now

    def write_checkpoint(self, folder: Path) -> None:
        """What a checkpoint contains: the model with averaged weights, and the state to resume from."""
        with self.ema.applied():
            self.write_model(folder)
        resume.save(folder, self.progress, self.network, self.optimizer, self.ema)

    def log(self, epoch: float | None = None) -> None:
        """Write a line of metrics and update the display, each log_steps."""
        progress = self.progress
        if progress.step % self.options.log_steps and progress.step not in (1, progress.max_steps):
            return
        event = {} if epoch is None else {"epoch": epoch}
        event |= self.window.summary(progress.seconds, self.objective.unit)
        self.metrics.write(progress.step, event)
        left = progress.seconds / progress.step * (progress.max_steps - progress.step)
        self.display.step(progress.step, progress.max_steps, event, left if progress.max_steps else None)
        self.window = Window(began=progress.seconds)
