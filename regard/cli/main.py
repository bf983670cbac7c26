"""The command line: a short function per command. Modules that need torch are imported inside, so that help is fast."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard import UserError, __version__
from regard.cli.options import (
    AnswerOptions,
    BeamSearchOptions,
    Command,
    ComputeOptions,
    DeviceOptions,
    EvalOptions,
    FewShotOptions,
    FileOptions,
    GenerationOptions,
    ModelType,
    Output,
    flatten_option_groups,
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

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a built-in recipe.")]

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as train.max_steps=300.")]

ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or a checkpoint folder.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; a UserError is one message, never a traceback."""
    try:
        try:
            app(args=arguments, prog_name="regard")
        finally:
            sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stdout = None  # the reader has closed the pipe; nothing may be flushed to it at exit
        sys.exit(1)
    except OSError as error:  # a full disk, a folder without write permission
        print(f"error: {error.filename or 'the system says'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _version(requested: bool) -> None:
    if requested:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Attention models: train them, run them, see what they look at."""


@app.command(cls=Command)
@flatten_option_groups
def train(recipe: RecipeName, output: Output, overrides: Overrides = None) -> None:
    """Train a model with a recipe.

    Ctrl-C saves a checkpoint; `regard resume` continues exactly from it.
    """
    from regard.config.recipe import load_recipe
    from regard.training.build import start

    loaded = load_recipe(recipe, overrides or [])
    _finish(start(loaded, quiet=output.quiet or output.json), Path(loaded.output), output)


@app.command(cls=Command)
@flatten_option_groups
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    output: Output,
    overrides: Overrides = None,
) -> None:
    """Resume a stopped run.

    The weights will be bit for bit those of an uninterrupted run, unless overrides change its length or learning rate.
    """
    from regard.training.build import resume as resume_run

    _finish(resume_run(run, output.quiet or output.json, overrides or []), run, output)


@app.command(cls=Command)
@flatten_option_groups
def evaluate(
    model: ModelPath,
    scoring: EvalOptions,
    search: BeamSearchOptions,
    few_shot: FewShotOptions,
    compute: ComputeOptions,
    output: Output,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Default: test or validation split.")] = None,
    compare: Annotated[str | None, typer.Option(metavar="MODEL", help="A second model, with a paired test.")] = None,
) -> None:
    """Evaluate a model, or compare two.

    Standard metrics of the task, with signatures and bootstrap intervals.
    """
    from dataclasses import replace

    from regard.cli.evaluate import evaluate as evaluate_models
    from regard.cli.evaluate import request_of, with_evaluate_options
    from regard.cli.output import emit
    from regard.data.columns import NoColumn

    names = [path for path in (model, compare) if path]
    request = request_of(file, names, scoring, search, few_shot, compute.batch_size)
    request = replace(request, quiet=output.quiet or output.json)
    models = [_load(path, compute) for path in names]
    try:
        results = evaluate_models(models, request)
    except NoColumn as error:
        raise with_evaluate_options(error, models[0].task) if file else error from None
    emit(results, output, "evaluation")


@app.command(cls=Command)
@flatten_option_groups
def run(
    model: ModelPath,
    rows: FileOptions,
    search: BeamSearchOptions,
    answering: AnswerOptions,
    compute: ComputeOptions,
    output: Output,
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="Default: lines of stdin.")] = None,
    task: Annotated[str, typer.Option(help="Of a model that can do several, such as embed.")] = "",
    vectors: Annotated[Path | None, typer.Option(metavar="FILE.npy", help="Write embeddings (--task embed).")] = None,
) -> None:
    """Print a prediction for each input, or each row of a file.

    The continuation of a single prompt keeps its line breaks.
    """
    from regard.cli.run import run_all, write_vectors

    if answering.log_probabilities and not output.json:
        raise typer.BadParameter("give --json too: they are one of its fields", param_hint="'--log-probabilities'")
    rows.check(inputs)
    options = search.specified() | answering.specified() | ({"task": task} if task else {})
    loaded = warn_unused_sampling(_load(model, compute), search)
    if vectors is None:
        run_all(loaded, inputs, compute.batch_size, output, rows, **options)
    else:
        write_vectors(loaded, inputs, compute.batch_size, output, vectors, rows, **options)


@app.command(cls=Command)
@flatten_option_groups
def search(
    model: ModelPath,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Texts: lines, .csv, .tsv or .jsonl; or a pattern.")],
    compute: ComputeOptions,
    output: Output,
    queries: Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="Default: lines of stdin.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of texts per query.")] = 5,
    column: Annotated[str, typer.Option(help="Column of texts in a table, by name or number; default: 'text'.")] = "",
    truncate: Annotated[bool, typer.Option("--truncate", help="Truncate longer texts, with a warning.")] = False,
) -> None:
    """Search the texts of a file by meaning (semantic search).

    Their embeddings are computed once and cached.
    """
    from regard.cli.search import search_all
    from regard.tasks.embed.search import Source, refuse_empty

    refuse_empty(queries)
    source = Source.of(file, column)
    search_all(_load(model, compute), source, queries, top, compute.batch_size, truncate, output)


@app.command(cls=Command)
@flatten_option_groups
def chat(
    model: ModelPath,
    generation: GenerationOptions,
    device: DeviceOptions,
    output: Output,
    system: Annotated[str, typer.Option(metavar="TEXT", help="System message.")] = "",
) -> None:
    """Chat with a language model.

    In a terminal, Ctrl-C stops an answer and /help lists commands; from a pipe, each line is a turn.
    """
    from regard.cli.chat import chat as run_chat

    run_chat(warn_unused_sampling(_load(model, device), generation), system, generation.specified(), output)


@app.command(cls=Command)
@flatten_option_groups
def inspect(
    model: ModelPath,
    output: Output,
    heads: Annotated[bool, typer.Option("--heads", help="Also scores of induction heads.")] = False,
    model_type: ModelType = "",
) -> None:
    """A model's sizes, config, attention sites and hashes."""
    from regard.cli.inspect import describe
    from regard.cli.output import emit

    emit(describe(model, heads, model_type or None), output, model)


@app.command(cls=Command)
@flatten_option_groups
def convert(
    model: Annotated[str, typer.Argument(metavar="IN", help="A run folder, or a checkpoint folder.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="A new or empty folder.")],
    output: Output,
    model_type: ModelType = "",
) -> None:
    """Write a model in a standard format.

    A LoRA adapter is merged into its base model.
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
@flatten_option_groups
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
@flatten_option_groups
def doctor(recipe: RecipeName, output: Output, overrides: Overrides = None) -> None:
    """Check recipe, data and machine before a run.

    Reports skipped samples, the expected cost of the run, and errors.
    """
    from regard.cli.output import emit_findings
    from regard.config.recipe import load_recipe
    from regard.training.doctor import examine

    findings = examine(load_recipe(recipe, overrides or []))
    emit_findings(findings, output)
    if findings.errors:
        raise typer.Exit(1)


@app.command(cls=Command)
@flatten_option_groups
def demo(output: Output) -> None:
    """Train two small models and show their attention."""
    from regard.cli.demo import run as run_demo
    from regard.cli.output import to_json

    results = run_demo(quiet=output.quiet or output.json)
    if results is None:
        raise typer.Exit(130)
    if output.json:
        print(to_json(results))


def _load(path: str, options: DeviceOptions) -> Any:
    from regard.model import load

    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    return load(path, device=options.device, precision=options.precision, model_type=options.model_type or None)


def warn_unused_sampling(model: Any, options: GenerationOptions) -> Any:
    """The model, after a warning about options without effect."""
    predictor = model.predictor()
    if options.unused_sampling(0) and "temperature" in predictor.options:
        decode = predictor.decode_options(**options.specified())
        if unused := options.unused_sampling(decode.temperature):
            print(f"warning: {', '.join(unused)}: only sampling uses it; give a --temperature too", file=sys.stderr)
    return model


def _finish(outcome: "Outcome", run: Path, output: Output) -> None:
    """Print how a run ended; an interrupted one exits with code 130."""
    from regard.cli.output import emit
    from regard.training.distributed import rank

    progress = outcome.progress
    summary = {"run": run, "status": outcome.status, "steps": progress.step, "seconds": round(progress.seconds, 1)}
    summary |= {"best_step": progress.best_step, "best_score": progress.best_score, "score": outcome.score}
    if rank() == 0 and (output.json or not output.quiet):
        emit(summary, output, "trained")
    if outcome.status == "interrupted":
        raise typer.Exit(130)
