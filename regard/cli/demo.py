"""`regard demo`: two small models learn to parse dates, and their attention is shown."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from regard.cli.options import Output
from regard.cli.output import emit
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

COMMANDS = """\
  regard doctor translate data.train=pairs.tsv     # dry run: problems, memory, time
  regard train translate data.train=pairs.tsv train.minutes=30
  regard evaluate runs/translate"""


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
    for name, title in MODELS.items():
        console.rule(f"[bold]{title}", align="left")
        output = FOLDER / name
        if output.exists():  # of an earlier demo
            shutil.rmtree(output)
        recipe = load_recipe(name, [f"output={output}"])
        outcome = start(recipe, quiet)
        if outcome.status == "interrupted":
            return None
        model = load(output)
        exact = _accuracy(model, recipe.seed)
        results.append(Result(title, model.num_parameters, outcome.progress.seconds, exact))
        console.print(f"{exact:.1f} % exact match on {HELD_OUT:,} held-out dates.\n")
        for text, answer in zip(EXAMPLES, model.run(list(EXAMPLES)), strict=True):
            console.print(Text.assemble(f"  {text:<24}", ("→  ", "dim"), (answer.text, "bold green")))
        traces = {text: model.trace(text) for text in EXAMPLES}
        maps += [map_of(trace, title, text) for text, trace in traces.items()]
        trace = traces[EXAMPLES[0]]
        site = [site for site in trace.sites if "cross" in site][-1]
        heading = f"Attention from {trace.answer} to the input, mean over heads"
        console.print(Padding(draw(trace.weights(site).mean(0), *trace.labels(site), title=heading), (1, 0)))
    page = write_page(FOLDER / "attention.html", "Attention of two date-normalisation models", maps)
    if not quiet:
        columns = {"model": "model", "parameters": "parameters", "seconds": "training (s)", "exact": "exact match (%)"}
        rows = [{title: getattr(each, name) for name, title in columns.items()} for each in results]
        emit({"Held-out dates": rows}, Output(), "demo")
    _show_next_steps(console, page)
    return results


def _accuracy(model: Model, seed: int) -> float:
    samples = list(GENERATORS["dates"](seed, "test", HELD_OUT))
    answers = model.run([sample.source for sample in samples], batch_size=250)
    return 100 * sum(answer.text == sample.target for answer, sample in zip(answers, samples, strict=True)) / HELD_OUT


def _show_next_steps(console: Console, page: Path) -> None:
    text = Text.assemble(
        "Attention viewer, all layers and heads: ",
        (page.resolve().as_uri(), "bold cyan"),
        "\nTry it:  ",
        (f'regard run {FOLDER / "dates"} "May the 4th, 1977"', "bold"),
        "\n\nYour own data (TSV: source<TAB>target):\n",
        (COMMANDS, "bold"),
    )
    console.print(Padding(Panel(text, title="Next", title_align="left", expand=False), (1, 0)))
