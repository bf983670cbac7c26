"""How many steps a run takes: as given, by epochs, or as many as a budget of minutes allows on this machine."""

import json
import math
from pathlib import Path
from typing import Any

from regard.config.recipe import TrainOptions
from regard.training.checkpoint import write_atomically
from regard.training.resume import Progress

MEASURED_STEPS = 50  # after these a budget of minutes is converted to steps
EVALUATION_SHARE = 0.1  # of a budget of minutes


class RunLength:
    """Turns epochs or minutes into steps; measured minutes are stored, so that a resumed run has the same schedule."""

    def __init__(self, run: Path, options: TrainOptions) -> None:
        self.path = run / "length.json"
        self.options = options

    def steps(self, progress: Progress, batches_per_epoch: int, world: int) -> int:
        """The steps of the run; 0 while a budget of minutes has not been measured."""
        options = self.options
        if options.max_steps:
            return options.max_steps
        if options.epochs:
            rest = max(0, math.ceil(options.epochs * batches_per_epoch) - progress.batch)
            return progress.step - (-rest // (options.gradient_accumulation_steps * world))
        return self._measured_steps(progress)

    def measure(self, progress: Progress) -> bool:
        """Convert a budget of minutes to steps, once enough of them were timed; True when it was done now."""
        budget = self.options.minutes * 60 * (1 - EVALUATION_SHARE)
        if not budget or progress.max_steps:
            return False
        if self._measured():
            progress.max_steps = self._measured_steps(progress)
            return False
        spent = progress.seconds - progress.evaluating
        if progress.step < MEASURED_STEPS and spent < budget:
            return False
        progress.max_steps = progress.step + max(0, int((budget - spent) / spent * progress.step))
        length = {"minutes": self.options.minutes, "max_steps": progress.max_steps, "measured_at": progress.step}
        write_atomically(self.path, json.dumps(length) + "\n")
        return True

    def _measured(self) -> dict[str, Any] | None:
        """What was stored for this budget."""
        length = json.loads(self.path.read_text()) if self.options.minutes and self.path.is_file() else None
        return length if length and length.get("minutes", self.options.minutes) == self.options.minutes else None

    def _measured_steps(self, progress: Progress) -> int:
        """The stored length, from the step on at which it was measured; 0 before."""
        length = self._measured()
        return length["max_steps"] if length and progress.step >= length["measured_at"] else 0
