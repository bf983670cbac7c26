"""The metrics of a run: what is summed between two lines of its log, metrics.jsonl and TensorBoard."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.training.checkpoint import write_atomically
from regard.training.display import SPEED
from regard.training.resume import Progress


@dataclass
class Window:
    """What happened since the last line of the log."""

    began: float = 0.0
    losses: float = 0.0
    steps: int = 0
    targets: int = 0
    loss: float = 0.0  # of the last step, as are norm and learning rate
    norm: float = 0.0
    learning_rate: float = 0.0

    def add(self, loss: float, norm: float, targets: int) -> None:
        self.loss = loss
        self.norm = norm
        self.targets += targets
        if self.finite:
            self.losses += loss
            self.steps += 1

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)

    def summary(self, seconds: float, unit: str) -> dict[str, float]:
        speed = self.targets / max(seconds - self.began, 1e-9)
        mean = self.losses / max(self.steps, 1)
        norm = {"gradient_norm": self.norm} if self.finite else {}
        return {"loss": mean, **norm, "learning_rate": self.learning_rate, f"{unit}{SPEED}": speed, "seconds": seconds}


class MetricsLog:
    """metrics.jsonl, a line per event, and TensorBoard on request; on resume, lines of repeated steps are dropped."""

    def __init__(self, folder: Path, progress: Progress, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        kept = []
        for event in _events(self.path):
            if event["step"] <= (progress.evaluated if "validation" in event else progress.step):
                kept.append(event)
        if self.path.is_file():
            write_atomically(self.path, "".join(json.dumps(event) + "\n" for event in kept))
        self.board = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("train.tensorboard = true needs TensorBoard: pip install tensorboard") from None
            self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=progress.step or None)
        for event in kept:  # the board forgets this step too, of which an evaluation may still be missing
            if event["step"] == progress.step:
                self._add_scalars(event.pop("step"), event)

    def write(self, step: int, event: Mapping[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **event}) + "\n")
        self._add_scalars(step, event)

    def _add_scalars(self, step: int, event: Mapping[str, object], prefix: str = "") -> None:
        """Nested values by their path, such as validation/loss."""
        if self.board is None:
            return
        for name, value in event.items():
            if isinstance(value, Mapping):
                self._add_scalars(step, value, f"{prefix}{name}/")
            elif isinstance(value, int | float):
                self.board.add_scalar(f"{prefix}{name}", float(value), step)

    def close(self) -> None:
        if self.board:
            self.board.close()


def validation_metrics(checkpoint: Path) -> tuple[int, dict[str, float]]:
    """The step of a checkpoint of a run, and its validation metrics there; none if it was not evaluated."""
    digits = checkpoint.name.rpartition("-")[2]
    step = int(digits) if digits.isdecimal() else 0
    events = [event for event in _events(checkpoint.parent / "metrics.jsonl") if event.get("step") == step]
    metrics = next((event["validation"] for event in events if "validation" in event), {})
    return step, {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _events(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, without one that a kill truncated."""
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        with suppress(ValueError):
            yield json.loads(line)
