"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere, nothing when quiet."""

import sys
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from regard.training.distributed import rank

SHOWN_SAMPLES = 3
SHOWN = 160  # characters of each part of a sample: about two lines
SPEED = "_per_second"


class Display:
    """Everything goes to stderr: stdout belongs to results."""

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
        """Where the run is: step, loss, score, rate, speed, time used and left."""
        words = [f"{step}/{max_steps}" if max_steps else str(step), f"epoch {event['epoch']:.2f}"]
        words += [f"loss {event['loss']:.4f}"] + ([self.score] if self.score else [])
        words += [f"lr {event['learning_rate']:.2e}"]
        words += [f"{event[key]:,.0f} {key.removesuffix(SPEED)}/s" for key in event if key.endswith(SPEED)]
        words += [_time(event["seconds"])] + ([f"{_time(left)} left"] if left is not None else [])
        line = "  ".join(words)
        if self.live:
            row = Table.grid(padding=(0, 1))
            row.add_row(ProgressBar(total=max_steps or None, completed=step, width=24), escape(line))
            self.live.update(row)
        else:
            self.console.print(escape(line))

    def evaluation(self, step: int, metrics: dict[str, float], score_name: str, best: bool) -> None:
        self.score = f"validation {score_name} {metrics[score_name]:.4g}"
        said = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.console.print(f"[bold]step {step}[/bold]  {escape(said)}{'  [green]best so far[/green]' if best else ''}")

    def samples(self, samples: Sequence[tuple[str, str, str]]) -> None:
        for source, reference, answer in samples:
            for name, text in (("source", source), ("reference", reference), ("answer", answer)):
                self.console.print(f"  [dim]{name:>9}[/dim]  {escape(_beginning(text))}")
            self.console.print()

    def note(self, text: str) -> None:
        self.console.print(escape(text))

    def warn(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {escape(text)}")


def _beginning(text: str) -> str:
    """A text, or what of it has room on two lines."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip()}…"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
