"""The progress of a run: a live bar in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from regard.errors import escape_controls
from regard.training.distributed import rank

SHOWN_SAMPLES = 3
SHOWN = 160  # characters of each text of a sample: about two lines
SPEED = "_per_second"


class Display:
    """Everything is written to stderr: stdout is for results."""

    def __init__(self, quiet: bool = False) -> None:
        quiet = quiet or rank() != 0
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self.live = Live(console=self.console, refresh_per_second=4) if sys.stderr.isatty() and not quiet else None
        self.score = ""

    def __enter__(self) -> "Display":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def step(self, step: int, max_steps: int, event: dict[str, float], left: float | None) -> None:
        """One line: step, epoch, loss, score, learning rate, speed, time used and left."""
        fields = [
            f"{step}/{max_steps}" if max_steps else str(step),
            f"epoch {event['epoch']:.2f}" if "epoch" in event else "",
            f"loss {event['loss']:.4f}",
            self.score,
            f"lr {event['learning_rate']:.2e}",
            *(f"{event[key]:,.0f} {key.removesuffix(SPEED)}/s" for key in event if key.endswith(SPEED)),
            _time(event["seconds"]),
            "" if left is None else f"{_time(left)} left",
        ]
        line = "  ".join(filter(None, fields))
        if self.live:
            row = Table.grid(padding=(0, 1))
            row.add_row(ProgressBar(total=max_steps or None, completed=step, width=24), escape(line))
            self.live.update(row)
        else:
            self.console.print(escape(line))

    def evaluation(self, step: int, metrics: dict[str, float], score_name: str, best: bool) -> None:
        self.score = f"validation {score_name} {metrics[score_name]:.4g}"
        values = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        mark = "  [green]best so far[/green]" if best else ""
        self.console.print(f"[bold]step {step}[/bold]  {escape(values)}{mark}")

    def samples(self, samples: Sequence[tuple[str, str, str]]) -> None:
        for source, reference, answer in samples:
            for name, text in (("source", source), ("reference", reference), ("answer", answer)):
                shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip()}…"
                self.console.print(f"  [dim]{name:>9}[/dim]  {escape(escape_controls(shown))}")
            self.console.print()

    def note(self, text: str) -> None:
        self.console.print(escape(escape_controls(text)))

    def warn(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {escape(escape_controls(text))}")


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
