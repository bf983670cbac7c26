"""Options that several verbs share, each group a dataclass; `unfold` spreads them over a verb's command line.

In a verb's help a group is a section, and the beginning of its docstring the section's title.
"""

import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from regard.config.options import DecodeOptions
from regard.errors import UserError


def given_texts(arguments: list[str] | None) -> Iterator[str]:
    """The arguments, else the lines of stdin, split at \\n alone; what is not UTF-8 is refused with its number."""
    if not arguments and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    for number, text in enumerate(arguments or sys.stdin, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            place = "argument" if arguments else "stdin, line"
            raise UserError(f"{place} {number}: not UTF-8; convert it, e.g. with iconv -t UTF-8") from None
        yield text if arguments else text.rstrip("\r\n")


def unfold(verb: Callable[..., None]) -> Callable[..., None]:
    """Give the verb an option for every field of its dataclass parameters, so that typer sees a flat function."""
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    hints = get_type_hints(verb, include_extras=True)
    for name, parameter in inspect.signature(verb).parameters.items():
        if not is_dataclass(hints[name]):
            flat.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = hints[name]
        inner = get_type_hints(hints[name], include_extras=True)
        for each in fields(hints[name]):
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            kind = inspect.Parameter.KEYWORD_ONLY
            option = _within(hints[name], inner[each.name])
            flat.append(inspect.Parameter(each.name, kind, default=default, annotation=option))

    @wraps(verb)
    def folded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        verb(**values)

    folded.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    folded.__signature__ = inspect.Signature(flat)  # pyright: ignore[reportAttributeAccessIssue]
    return folded


def _within(group: type, annotation: Any) -> Any:
    """The option of a group, for its section."""
    kind, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = re.split("[.;:]", group.__doc__ or "")[0]
    return Annotated[kind, option]


class Command(TyperCommand):
    """A verb whose help has its arguments first, then its own options, then a section for each group that it shares."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            title = "Arguments" if each.param_type_name == "argument" else getattr(each, "rich_help_panel", None)
            if record := each.get_help_record(ctx):
                sections.setdefault(title or "Options", []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


ModelType = Annotated[str, typer.Option(help="Such as bert, where config.json says none.")]


@dataclass(frozen=True)
class Output:
    """What is printed."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results only: no progress, no advice.")] = False


@dataclass(frozen=True)
class Place:
    """Where a model computes, and how finely."""

    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto"
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to the machine.")] = 0
    precision: Annotated[str, typer.Option(help="float32, bfloat16, or int8: weights of eight bits.")] = "float32"
    model_type: ModelType = ""


@dataclass(frozen=True)
class Machine(Place):
    """Where a model computes, and how finely: many answers."""

    batch_size: Annotated[int, typer.Option(min=1, help="Inputs computed at once.")] = 32


@dataclass(frozen=True)
class Generation:
    """Generation. Defaults come from the checkpoint."""

    no_repeat_ngram_size: Annotated[int | None, typer.Option(min=0, help="No n-gram of this size twice.")] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1, words once said become rarer.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Above 0, what was written becomes rarer.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="The same, for each time it was written.")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Make a token likelier or rarer; repeatable.")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End where this comes; repeatable.")] = None
    min_new_tokens: Annotated[int | None, typer.Option(min=0, help="Shortest output, in tokens.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest output, in tokens.")] = None
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sample with it; 0 searches.")] = None
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample from the likeliest k; 0 from all.")] = None
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Sample from this probability, over 0.")] = None
    min_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Sample from this share of the best.")] = None
    seed: Annotated[int | None, typer.Option(help="Of the sampling.")] = None

    def given(self) -> dict[str, Any]:
        """Only what the user named, to be laid over the checkpoint's own generation settings."""
        said = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        if self.logit_bias:
            said["logit_bias"] = dict(_bias(each) for each in self.logit_bias)
        for name in said.keys() - {"num_return_sequences"}:  # which is right or wrong by how many beams there are
            _check(name, said[name])
        return said

    def idle(self, temperature: float) -> list[str]:
        """The options that only sampling heeds, where there is none."""
        names = ("top_k", "top_p", "min_p")
        return [f"--{name.replace('_', '-')}" for name in names if not temperature and getattr(self, name) is not None]


@dataclass(frozen=True)
class Search(Generation):
    """Generation. Defaults come from the checkpoint; with beam search."""

    num_beams: Annotated[int | None, typer.Option(min=1, help="Beam size; 1 = greedy.")] = None
    length_penalty: Annotated[float | None, typer.Option(help="Above 0, longer output is favoured.")] = None
    num_return_sequences: Annotated[int | None, typer.Option(min=1, help="Outputs per input.")] = None


def _check(name: str, value: Any) -> None:
    """Refuse a value as the option that it was given by."""
    try:
        DecodeOptions(**{name: value})
    except UserError as error:
        option = f"'--{name.replace('_', '-')}'"
        raise typer.BadParameter(str(error).removeprefix("decode."), param_hint=option) from None


def _bias(given: str) -> tuple[str, float]:
    """ID=BIAS as a pair."""
    token, _, bias = given.partition("=")
    try:
        return str(int(token)), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{given!r} should be ID=BIAS, such as 13=-5", param_hint="'--logit-bias'") from None


@dataclass(frozen=True)
class Rows:
    """Rows of a file, in place of inputs."""

    file: Annotated[
        str, typer.Option(metavar="FILE", help="Answer each row of a .csv, .tsv or .jsonl, each line of a .txt.")
    ] = ""
    column: Annotated[str, typer.Option(metavar="NAME", help="The texts'; else the recipe's, or 'text'.")] = ""
    text_pair: Annotated[str, typer.Option(metavar="NAME", help="The second text's: of pairs, of questions.")] = ""

    def check(self, inputs: list[str] | None) -> None:
        """Refuse what would be read by nobody."""
        if self.file and inputs:
            raise typer.BadParameter("give INPUTs or a file, not both", param_hint="'--file'")
        for name in ("column", "text_pair"):
            if getattr(self, name) and not self.file:
                raise typer.BadParameter("is of a file: give --file too", param_hint=f"'--{name.replace('_', '-')}'")


@dataclass(frozen=True)
class Answering:
    """Answers: what one says beside its text, and how it is come by; each for the models that can."""

    alignments: Annotated[bool, typer.Option("--alignments", help="Also which source token each token saw.")] = False
    log_probabilities: Annotated[
        bool, typer.Option("--log-probabilities", help="Also that of each token; with --json.")
    ] = False
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut inputs over the limit, and say so.")] = False
    draft: Annotated[str, typer.Option(metavar="MODEL", help="A smaller model that guesses ahead.")] = ""
    lookup: Annotated[bool, typer.Option("--lookup", help="Guess ahead what the prompt said before.")] = False
    context: Annotated[Path | None, typer.Option(metavar="FILE", help="The text that questions are asked of.")] = None
    best: Annotated[int | None, typer.Option(min=1, help="Answers to a question, or words for a hidden one.")] = None
    threshold: Annotated[
        float | None, typer.Option(help="No answer where it is better by more; of several labels the least likely.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Only what the user named: a model is asked for nothing that it may not know."""
        return _given(self)


@dataclass(frozen=True)
class Prompting:
    """Language models: measured on running text, or with examples in the prompt."""

    shots: Annotated[str, typer.Option(metavar="N,N,…", help="Ask with so many examples before the question.")] = ""
    by: Annotated[str, typer.Option(help="Choose by likelihood of the labels, or compare the generation.")] = ""
    template: Annotated[str, typer.Option(metavar="TEXT", help="Of an example; else '{text} → {label}\\n'.")] = ""
    seeds: Annotated[int, typer.Option(min=1, help="Other shots for each question, so often.")] = 3
    limit: Annotated[int, typer.Option(min=0, help="Ask at most so many questions; 0 asks all.")] = 0
    stride: Annotated[int, typer.Option(min=0, help="Tokens that a window moves by; 0 is half the context.")] = 0

    def given(self) -> dict[str, Any]:
        """Only what differs from the default."""
        return _given(self)


@dataclass(frozen=True)
class Scoring:
    """What is scored, and how it is told."""

    source: Annotated[str, typer.Option(help="The side or column to read from.")] = ""
    target: Annotated[str, typer.Option(help="The side or column to compare with.")] = ""
    text_pair: Annotated[str, typer.Option(help="The second text's column: of pairs, of questions.")] = ""
    columns: Annotated[str, typer.Option(metavar="NAME,…", help="Of a file without header.")] = ""
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut inputs over the limit.")] = False
    by_length: Annotated[bool, typer.Option("--by-length", help="Also BLEU by length of the source.")] = False
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw BLEU by length, shots, mistakes.")] = None
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write what was wanted and told of each sample.")
    ] = None
    lowercase: Annotated[bool | None, typer.Option(help="Compare without case; by default as it was trained.")] = None

    def given(self) -> dict[str, Any]:
        """Only what differs from the default."""
        return _given(self)


def _given(group: Any) -> dict[str, Any]:
    return {each.name: value for each in fields(group) if (value := getattr(group, each.name)) != each.default}
