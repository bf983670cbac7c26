"""The command line: one short function a verb. What needs torch is imported inside, so that help comes at once."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard import UserError, __version__
from regard.cli.options import (
    Answering,
    Command,
    Generation,
    Machine,
    ModelType,
    Output,
    Place,
    Prompting,
    Rows,
    Scoring,
    Search,
    unfold,
)
from regard.cli.tokenizer import tokenizer

if TYPE_CHECKING:
    from regard.training.loop import Outcome

app = typer.Typer(
    name="regard",
    help="Attention models: train them, run them, see what they look at.",
    epilog="Exit: 0 done, 1 the work failed, 2 wrong usage, 130 stopped. Start with `regard demo` or `regard list`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: half the start-up time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(tokenizer, name="tokenizer")

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of one that ships.")]

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as train.max_steps=300.")]

ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or a checkpoint folder.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code; a UserError is one message, never a traceback."""
    try:
        try:
            app(args=arguments, prog_name="regard")
        finally:
            sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stdout = None  # the reader has left; nothing may be flushed to it at exit
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error.filename or 'the system says'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Attention models: train them, run them, see what they look at."""


@app.command(cls=Command)
@unfold
def train(recipe: RecipeName, output: Output, overrides: Overrides = None) -> None:
    """Train a model as a recipe says.

    Ctrl-C saves; `regard resume` goes on exactly there.
    """
    from regard.config.recipe import load_recipe
    from regard.training.build import start

    wanted = load_recipe(recipe, overrides or [])
    _finish(start(wanted, quiet=output.quiet or output.json), Path(wanted.output), output)


@app.command(cls=Command)
@unfold
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    output: Output,
    overrides: Overrides = None,
) -> None:
    """Go on with a stopped run.

    It comes to the same weights, bit for bit, as if it had never stopped; or another length or rate is given from here.
    """
    from regard.training.build import resume as go_on

    _finish(go_on(run, output.quiet or output.json, overrides or []), run, output)


@app.command(cls=Command)
@unfold
def evaluate(
    model: ModelPath,
    scoring: Scoring,
    search: Search,
    prompting: Prompting,
    machine: Machine,
    output: Output,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Else the recipe's test or validation.")] = None,
    compare: Annotated[str | None, typer.Option(metavar="MODEL", help="A second model, tested in pairs.")] = None,
) -> None:
    """Score a model, or compare two.

    The metrics are the field's own, with signatures and bootstrap intervals.
    """
    from dataclasses import replace

    from regard.cli.evaluate import evaluate as evaluate_models
    from regard.cli.evaluate import request_of, with_evaluate_options
    from regard.cli.output import emit
    from regard.data.columns import NoColumn

    names = [path for path in (model, compare) if path]
    request = request_of(file, names, scoring, search, prompting, machine)
    request = replace(request, quiet=output.quiet or output.json)
    models = [_load(path, machine) for path in names]
    try:
        results = evaluate_models(models, request)
    except NoColumn as error:
        raise with_evaluate_options(error, models[0].task) if file else error from None
    emit(results, output, "evaluation")


@app.command(cls=Command)
@unfold
def run(
    model: ModelPath,
    rows: Rows,
    search: Search,
    answering: Answering,
    machine: Machine,
    output: Output,
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="Else stdin, a line each.")] = None,
    task: Annotated[str, typer.Option(help="Where a model can do several, such as embed.")] = "",
    vectors: Annotated[Path | None, typer.Option(metavar="FILE.npy", help="Of --task embed: write them here.")] = None,
) -> None:
    """Answer each input, or each row of a file, with a line.

    A language model goes on with the text; alone, an input is answered in as many lines as that takes.
    """
    from regard.cli.run import run_all, write_vectors

    if answering.log_probabilities and not output.json:
        raise typer.BadParameter("give --json too: they are one of its fields", param_hint="'--log-probabilities'")
    rows.check(inputs)
    options = search.given() | answering.given() | ({"task": task} if task else {})
    loaded = _heard(_load(model, machine), search)
    if vectors is None:
        run_all(loaded, inputs, machine.batch_size, output, rows, **options)
    else:
        write_vectors(loaded, inputs, machine.batch_size, output, vectors, rows, **options)


@app.command(cls=Command)
@unfold
def search(
    model: ModelPath,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Texts: a line each, .csv, .tsv or .jsonl; or a pattern.")
    ],
    machine: Machine,
    output: Output,
    queries: Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="Else stdin, a line each.")] = None,
    top: Annotated[int, typer.Option(min=1, help="So many texts for each query.")] = 5,
    column: Annotated[str, typer.Option(help="Of a table: where its texts are, by name or number; else 'text'.")] = "",
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts over the limit, and say so.")] = False,
) -> None:
    """Find the texts of a file that mean nearly what is asked.

    Their vectors are made once, and kept for the next query.
    """
    from regard.cli.search import search_all
    from regard.tasks.embed.search import Source, refuse_empty

    refuse_empty(queries)
    source = Source.of(file, column)
    search_all(_load(model, machine), source, queries, top, machine.batch_size, truncate, output)


@app.command(cls=Command)
@unfold
def chat(
    model: ModelPath,
    generation: Generation,
    place: Place,
    output: Output,
    system: Annotated[str, typer.Option(metavar="TEXT", help="Tell the model how to be.")] = "",
) -> None:
    """Talk with a language model.

    At a terminal, Ctrl-C stops an answer and /help lists what else can be done; piped, each line is a turn.
    """
    from regard.cli.chat import chat as talk

    talk(_heard(_load(model, place), generation), system, generation.given(), output)


@app.command(cls=Command)
@unfold
def inspect(
    model: ModelPath,
    output: Output,
    heads: Annotated[bool, typer.Option("--heads", help="Also which heads are induction heads.")] = False,
    model_type: ModelType = "",
) -> None:
    """A model's sizes, config, attention sites and hashes."""
    from regard.cli.inspect import describe
    from regard.cli.output import emit

    emit(describe(model, heads, model_type or None), output, model)


@app.command(cls=Command)
@unfold
def convert(
    model: Annotated[str, typer.Argument(metavar="IN", help="A run folder, or a checkpoint folder.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is not there yet, or is empty.")],
    output: Output,
    model_type: ModelType = "",
) -> None:
    """Write a model anew.

    An adapter is added to its base; what others read becomes what we write.
    """
    from regard.cli.output import emit
    from regard.interop.heads import UNPUBLISHED_NOTE, is_unpublished
    from regard.model import load

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: give another OUT")
    loaded = load(model, device="cpu", model_type=model_type or None)
    loaded.save(folder)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    written = {"written": folder, "files": {name: {"bytes": size} for name, size in sizes.items()}}
    written |= {"note": UNPUBLISHED_NOTE} if is_unpublished(loaded.network) else {}
    if output.json or not output.quiet:
        emit(written, output, "convert")


@app.command(name="list", cls=Command)
@unfold
def list_all(
    output: Output,
    section: Annotated[str, typer.Argument(metavar="SECTION", help="recipes, models or tasks; default: names.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Also the recipes of ablation studies.")] = False,
) -> None:
    """List tasks, model families with presets, and built-in recipes."""
    from regard.cli import list as listing
    from regard.cli.output import emit

    if section:
        emit(listing.details(section) if output.json else listing.summary(section, every), output, section)
    else:
        emit(listing.catalogue() if output.json else listing.overview(), output, "regard")


@app.command(cls=Command)
@unfold
def doctor(recipe: RecipeName, output: Output, overrides: Overrides = None) -> None:
    """Read recipe, data and machine before a run.

    What would be skipped, what the run will cost, and what will go wrong.
    """
    from regard.cli.output import emit_findings
    from regard.config.recipe import load_recipe
    from regard.training.doctor import examine

    findings = examine(load_recipe(recipe, overrides or []))
    emit_findings(findings, output)
    if findings.errors:
        raise typer.Exit(1)


@app.command(cls=Command)
@unfold
def demo(output: Output) -> None:
    """Train a small model, and see what it looks at."""
    from regard.cli.demo import run as run_demo
    from regard.cli.output import document

    results = run_demo(quiet=output.quiet or output.json)
    if results is None:
        raise typer.Exit(130)
    if output.json:
        print(document(results))


def _load(path: str, place: Place) -> Any:
    from regard.model import load

    if place.threads:
        import torch

        torch.set_num_threads(place.threads)
    return load(path, device=place.device, precision=place.precision, model_type=place.model_type or None)


def _heard(model: Any, options: Generation) -> Any:
    """The model, after a warning about options that take no effect."""
    predictor = model.predictor()
    if options.idle(0) and "temperature" in predictor.options:
        decode = predictor.decode_options(**options.given())
        if idle := options.idle(decode.temperature):
            print(f"warning: {', '.join(idle)}: only sampling uses it; give a --temperature too", file=sys.stderr)
    return model


def _finish(outcome: "Outcome", run: Path, output: Output) -> None:
    """Print how a run ended; one that was interrupted leaves as an interrupted program does."""
    from regard.cli.output import emit
    from regard.training.distributed import rank

    progress = outcome.progress
    summary = {"run": run, "status": outcome.status, "steps": progress.step, "seconds": round(progress.seconds, 1)}
    summary |= {"best_step": progress.best_step, "best_score": progress.best_score, "score": outcome.score}
    if rank() == 0 and (output.json or not output.quiet):
        emit(summary, output, "trained")
    if outcome.status == "interrupted":
        raise typer.Exit(130)
