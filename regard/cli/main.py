"""The command line: a short function per command. Modules that need torch are imported inside, so that help is fast."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from regard import UserError, __version__
from regard.cli.command import verb
from regard.cli.inference import inference
from regard.cli.options import ModelPath, ModelType, Output
from regard.cli.tokenizer import tokenizer
from regard.errors import escape_controls, report

if TYPE_CHECKING:
    from regard.config.recipe import Recipe
    from regard.training.loop import Outcome

ORDER = ("train", "resume", "evaluate", "run", "search", "chat", "inspect", "convert", "list", "doctor", "demo")


EXPLORE = "regard run MODEL TEXT --explore FILE.html"
OTHER_VERBS = {
    **dict.fromkeys(("predict", "infer", "generate", "translate", "classify"), "regard run MODEL TEXT"),
    **dict.fromkeys(("trace", "explore", "attention"), EXPLORE),
    **dict.fromkeys(("fit", "finetune", "fine-tune"), "regard train RECIPE"),
    **dict.fromkeys(("test", "eval", "score"), "regard evaluate MODEL"),
}  # verbs of other tools


OWN_DATA = {
    "classify": "columns text and label",
    "image": "a folder per class, or columns image and label",
    "caption": "columns image and caption",
    "tag": "CoNLL: a token and its tag a line; or .jsonl",
    "answer": "columns question, context and answer, or SQuAD's .json",
    "translate": "two columns: source and target",
    "write": "plain text",
    "fill": "plain text",
}  # recipes for any data


class Verbs(TyperGroup):
    """The commands in the order of their use."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in OTHER_VERBS:
            ctx.fail(f"No such command '{args[0]}'; did you mean `{OTHER_VERBS[args[0]]}`?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: object) -> list[str]:
        return [*ORDER, *(self.commands.keys() - {*ORDER})]


app = typer.Typer(
    name="regard",
    cls=Verbs,
    epilog="Exit codes: 0 success, 1 error, 2 usage error, 130 interrupted. Start with `regard demo` or `regard list`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: half the start-up time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(inference)
app.add_typer(tokenizer, name="tokenizer")

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="TOML file, or name of a built-in recipe (`regard list recipes`).")
]

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Override a recipe key, e.g. train.max_steps=300.")
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; a UserError is one message, never a traceback."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {escape_controls(str(message))}\n"
    for index, word in enumerate(sys.argv[1:] if arguments is None else arguments, 1):
        if word != word.encode(errors="replace").decode():
            report("error", f"argument {index}: {word!a} is not UTF-8; convert the text, or rename the file")
            sys.exit(2)
    try:
        try:
            app(args=arguments, prog_name="regard")
        finally:
            sys.stdout.flush()
    except UserError as error:
        report("error", str(error))
        sys.exit(1)
    except BrokenPipeError:
        sys.stdout = None  # the pipe was closed; nothing may be flushed to it at exit
        sys.exit(1)
    except OSError as error:  # a full disk, a folder without write permission
        report("error", f"{error.filename or 'system error'}: {error.strerror or error}")
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
    """Train, fine-tune, run and inspect attention models (RNN with attention, Transformer, BERT, GPT, Llama, ViT)."""


@verb(app, "train classify data.train=reviews.csv", "train mine.toml train.minutes=20 output=runs/second")
def train(recipe: RecipeName, output: Output, overrides: Overrides = None) -> None:
    """Train or fine-tune a model from a recipe (TOML).

    Ctrl-C saves a checkpoint; `regard resume` continues exactly from it.
    """
    from regard.training.build import start

    loaded = _load_recipe(recipe, overrides or [])
    _finish(start(loaded, quiet=output.quiet or output.json), Path(loaded.output), output)


@verb(app, "resume runs/mine", "resume runs/mine train.max_steps=5000")
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")], output: Output, overrides: Overrides = None
) -> None:
    """Resume an interrupted run.

    The weights will be bit-identical to those of an uninterrupted run; KEY=VALUE changes length, learning rate or
    schedule from here on.
    """
    from regard.training.build import resume as resume_run

    _finish(resume_run(run, output.quiet or output.json, overrides or []), run, output)


@verb(app, "inspect runs/demo/dates")
def inspect(
    model: ModelPath,
    output: Output,
    heads: Annotated[bool, typer.Option("--heads", help="Also score every head as an induction head.")] = False,
    model_type: ModelType = "",
) -> None:
    """Show a model's size, config, attention layers and hashes."""
    from regard.cli.inspect import describe
    from regard.cli.output import emit

    emit(describe(model, heads, model_type or None), output, model)


@verb(app, "convert runs/mine merged")
def convert(
    model: Annotated[str, typer.Argument(metavar="IN", help="Run folder, or checkpoint folder.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder; must be new or empty.")],
    output: Output,
    model_type: ModelType = "",
) -> None:
    """Load a checkpoint and save it again.

    Any supported format is read; a LoRA adapter is merged into its base model.
    """
    from regard.cli.output import emit
    from regard.interop.folder import layout_of
    from regard.interop.model_card import transformers_problem
    from regard.model import load

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: give another OUT")
    loaded = load(model, device="cpu", model_type=model_type or None)
    loaded.save(folder)
    files = {path.name: {"bytes": path.stat().st_size} for path in sorted(folder.iterdir())}
    model_type = layout_of(loaded.network, loaded.config).model_type
    note = transformers_problem(loaded.network, loaded.processor, model_type)
    if output.json or not output.quiet:
        emit({"written": folder, "files": files, **({"note": note} if note else {})}, output, "convert")


@verb(app, "list", "list recipes", "list models --json", name="list")
def list_all(
    output: Output,
    section: Annotated[
        str, typer.Argument(metavar="SECTION", help="recipes, models or tasks; if omitted, all names.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Also the recipes of ablation studies.")] = False,
) -> None:
    """List tasks, model families with presets, and built-in recipes."""
    from regard.cli import list as listing
    from regard.cli.output import emit

    if section:
        emit(listing.details(section) if output.json else listing.summary(section, every), output, section)
    else:
        emit(listing.catalogue() if output.json else listing.overview(), output, "regard")


@verb(app, "doctor classify data.train=reviews.csv")
def doctor(recipe: RecipeName, output: Output, overrides: Overrides = None) -> None:
    """Dry run: check recipe, data and hardware.

    Estimates memory, disk space and time, and reports data leakage and skipped examples. Writes no run.
    """
    from regard.cli.output import emit_findings
    from regard.training.doctor import examine

    findings = examine(_load_recipe(recipe, overrides or []))
    emit_findings(findings, output)
    if findings.errors:
        raise typer.Exit(1)


@verb(app, "demo")
def demo(output: Output) -> None:
    """Train two toy models and show their attention (two minutes)."""
    from regard.cli.demo import run as run_demo
    from regard.cli.output import to_json

    results = run_demo(quiet=output.quiet or output.json)
    if results is None:
        raise typer.Exit(130)
    if output.json:
        print(to_json(results))


def _load_recipe(name: str, overrides: list[str]) -> "Recipe":
    """A recipe, whose data must be given if it is written for any data."""
    from regard.config.aliases import canonical_key
    from regard.config.recipe import load_recipe
    from regard.data.files import find

    recipe = load_recipe(name, overrides, _note)
    keys = {canonical_key(override.partition("=")[0].strip()) for override in overrides}
    if name in OWN_DATA and not {"data.train", "data.synthetic"} & keys:
        try:
            find(str(recipe.data.train), Path(recipe.origin))
        except UserError:
            raise UserError(f"recipe {name} needs your file: data.train=FILE ({OWN_DATA[name]})") from None
    return recipe


def _note(text: str) -> None:
    report("note", text)


def _finish(outcome: "Outcome", run: Path, output: Output) -> None:
    """Print how a run ended; an interrupted one exits with code 130."""
    from regard.cli.output import emit
    from regard.training.distributed import rank

    progress = outcome.progress
    summary = {"run": run, "status": outcome.status, "steps": progress.step, "seconds": round(progress.seconds, 1)}
    summary |= {"best_step": progress.best_step, "best_score": progress.best_score, "score": outcome.score}
    if rank() == 0:
        emit(summary, output, "trained")
    if outcome.status == "interrupted":
        raise typer.Exit(130)
