"""The metrics of a run: what is summed between two lines of its log, metrics.jsonl and TensorBoard."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.training.checkpoint import write_atomically
from regard.training.display import SPEED
from regard.training.resume import Progress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
        if self.path.is_file():
            lines = [line for line in map(_parse, self.path.read_text(encoding="utf-8").splitlines()) if line]
            kept = [line for line in lines if _was_before(line, progress)]
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self.board = _open_board(folder, progress.step) if tensorboard else None
        for line in kept:  # the board forgets this step too, of which an evaluation may still be missing
            if line["step"] == progress.step:
                self._add_scalars(line.pop("step"), line)

    def write(self, step: int, event: Mapping[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **event}) + "\n")
        self._add_scalars(step, event)

    def _add_scalars(self, step: int, event: Mapping[str, object]) -> None:
        if self.board:
            for name, value in _flatten(event).items():
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        if self.board:
            self.board.close()


def validation_metrics(checkpoint: Path) -> tuple[int, dict[str, float]]:
    """The step of a checkpoint of a run, and its validation metrics there; none if it was not evaluated."""
    digits = checkpoint.name.rpartition("-")[2]
    step = int(digits) if digits.isdecimal() else 0
    log = checkpoint.parent / "metrics.jsonl"
    lines = filter(None, map(_parse, log.read_text(encoding="utf-8").splitlines())) if log.is_file() else ()
    metrics = next((line["validation"] for line in lines if line.get("step") == step and "validation" in line), {})
    return step, {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _parse(line: str) -> dict[str, Any] | None:
    """A line, or None if a kill truncated it."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _was_before(line: dict[str, Any], progress: Progress) -> bool:
    return line["step"] <= (progress.evaluated if "validation" in line else progress.step)


def _flatten(event: Mapping[str, object], prefix: str = "") -> dict[str, float]:
    """Nested values by their path, such as validation/loss."""
    scalars = {}
    for name, value in event.items():
        if isinstance(value, Mapping):
            scalars |= _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            scalars[f"{prefix}{name}"] = float(value)
    return scalars


def _open_board(folder: Path, step: int) -> "SummaryWriter":
    """TensorBoard's writer, purged of this step and later ones."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard = true needs TensorBoard: pip install tensorboard") from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
