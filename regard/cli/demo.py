"""`regard demo`: two small models learn to parse dates, and their attention is shown."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from regard.config.recipe import load_recipe
from regard.data.synthetic.pairs import GENERATORS
from regard.explorer.page import map_of, write_page
from regard.explorer.terminal import draw
from regard.model import Model, load
from regard.training.build import start

FOLDER = Path("runs/demo")

MODELS = {
    "dates": "A recurrent network with additive attention (Bahdanau et al. 2015)",
    "dates-transformer": "A small Transformer (Vaswani et al. 2017)",
}

EXAMPLES = ("the 25th of June, 2009", "Sat 3 May 86", "12.11.1999")

HELD_OUT = 1000


@dataclass(frozen=True)
class Result:
    """A trained model: its size, the seconds of its training, and its exact match on held-out dates in percent."""

    model: str
    parameters: int
    seconds: float
    exact: float


def run(quiet: bool = False) -> list[Result] | None:
    """Train both models, evaluate them on held-out dates, draw their attention and write the page.

    None if it was interrupted.
    """
    console = Console(quiet=quiet)
    console.print(Panel("[bold]regard[/bold] · train, run and inspect attention models", expand=False))
    console.print("Two models learn to normalise dates from 20,000 synthetic examples, each in about a minute.\n")
    maps = []
    results = []
    for recipe, title in MODELS.items():
        console.rule(f"[bold]{title}", align="left")
        trained = _train(recipe, quiet)
        if trained is None:
            return None
        model, seconds = trained
        size = sum(parameter.numel() for parameter in model.network.parameters())
        results.append(Result(title, size, seconds, _accuracy(model)))
        console.print(f"{results[-1].exact:.1f} % exact match on {HELD_OUT:,} held-out dates.\n")
        _translate(console, model)
        traces = {text: model.trace(text) for text in EXAMPLES}
        maps += [map_of(trace, title, text) for text, trace in traces.items()]
        trace = traces[EXAMPLES[0]]
        site = [site for site in trace.sites if "cross" in site][-1]
        heading = f"Attention from {trace.answer} to the input, mean over heads"
        console.print(Padding(draw(trace.weights(site).mean(0), *trace.labels(site), title=heading), (1, 0)))
    page = write_page(FOLDER / "attention.html", "Attention of two date-normalisation models", maps)
    _summary(console, results)
    _next_steps(console, page)
    return results


def _train(recipe: str, quiet: bool) -> tuple[Model, float] | None:
    output = FOLDER / recipe
    if output.exists():  # of an earlier demo
        shutil.rmtree(output)
    started = time.monotonic()
    outcome = start(load_recipe(recipe, [f"output={output}"]), quiet=quiet)
    if outcome.status == "interrupted":
        return None
    return load(output), time.monotonic() - started


def _accuracy(model: Model) -> float:
    assert model.recipe is not None
    samples = list(GENERATORS["dates"](model.recipe.seed, "test", HELD_OUT))
    answers = model.run([sample.source for sample in samples], batch_size=250)
    return 100 * sum(answer.text == sample.target for answer, sample in zip(answers, samples, strict=True)) / HELD_OUT


def _translate(console: Console, model: Model) -> None:
    table = Table.grid(padding=(0, 2))
    for text, answer in zip(EXAMPLES, model.run(list(EXAMPLES)), strict=True):
        table.add_row(text, Text("→", style="dim"), Text(answer.text, style="bold green"))
    console.print(Padding(table, (0, 2)))


def _summary(console: Console, results: list[Result]) -> None:
    table = Table(title="Held-out dates", title_justify="left", title_style="bold")
    table.add_column("model")
    for column in ("parameters", "training", "exact match"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(result.model, f"{result.parameters:,}", f"{result.seconds:.0f} s", f"{result.exact:.1f} %")
    console.print(table)


def _next_steps(console: Console, page: Path) -> None:
    lines = [
        Text.assemble("Attention viewer, all layers and heads: ", (page.resolve().as_uri(), "bold cyan")),
        Text.assemble("Try it:  ", (f'regard run {FOLDER / "dates"} "May the 4th, 1977"', "bold")),
        Text(""),
        Text("Your own data (TSV: source<TAB>target):"),
        Text(
            "  regard doctor translate data.train=pairs.tsv     # dry run: problems, memory, time",
            style="bold",
        ),
        Text("  regard train translate data.train=pairs.tsv train.minutes=30", style="bold"),
        Text("  regard evaluate runs/translate", style="bold"),
    ]
    console.print(Padding(Panel(Group(*lines), title="Next", title_align="left", expand=False), (1, 0)))
