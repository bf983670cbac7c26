"""Option groups that several commands share, as dataclasses; `flatten_option_groups` makes them options of a command.

In the help each group is a section; the start of its docstring is the section's title.
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


def read_texts(arguments: list[str] | None) -> Iterator[str]:
    """The arguments, else the lines of stdin, split at \\n only; text that is not UTF-8 is an error with its index."""
    if not arguments and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    for index, text in enumerate(arguments or sys.stdin, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            source = "argument" if arguments else "stdin, line"
            raise UserError(f"{source} {index}: not UTF-8; convert it, e.g. with iconv -t UTF-8") from None
        yield text if arguments else text.rstrip("\r\n")


def flatten_option_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter by an option per field, so that typer sees a flat function."""
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if not is_dataclass(hints[name]):
            flat.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = hints[name]
        inner = get_type_hints(hints[name], include_extras=True)
        for field in fields(hints[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            kind = inspect.Parameter.KEYWORD_ONLY
            option = _in_section(hints[name], inner[field.name])
            flat.append(inspect.Parameter(field.name, kind, default=default, annotation=option))

    @wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        function(**values)

    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    command.__signature__ = inspect.Signature(flat)  # pyright: ignore[reportAttributeAccessIssue]
    return command


def _in_section(group: type, annotation: Any) -> Any:
    """The option, with the group's title as its section of the help."""
    kind, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = re.split("[.;:]", group.__doc__ or "")[0]
    return Annotated[kind, option]


class Command(TyperCommand):
    """A command whose help lists arguments, its own options, and then a section per shared group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            title = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            if record := parameter.get_help_record(ctx):
                sections.setdefault(title or "Options", []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


ModelType = Annotated[str, typer.Option(help="Such as bert, where config.json has none.")]


@dataclass(frozen=True)
class Output:
    """What is printed."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results only: no progress, no advice.")] = False


@dataclass(frozen=True)
class DeviceOptions:
    """Device and precision."""

    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "auto"
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to the machine.")] = 0
    precision: Annotated[str, typer.Option(help="float32, bfloat16, or int8: weights of eight bits.")] = "float32"
    model_type: ModelType = ""


@dataclass(frozen=True)
class ComputeOptions(DeviceOptions):
    """Device and precision: with a batch size."""

    batch_size: Annotated[int, typer.Option(min=1, help="Inputs computed at once.")] = 32


@dataclass(frozen=True)
class GenerationOptions:
    """Generation. Defaults come from the checkpoint."""

    no_repeat_ngram_size: Annotated[int | None, typer.Option(min=0, help="No n-gram of this size twice.")] = None
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1, fewer repeated tokens.")] = None
    presence_penalty: Annotated[float | None, typer.Option(help="Above 0, fewer repeated tokens.")] = None
    frequency_penalty: Annotated[float | None, typer.Option(help="The same, for each occurrence.")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Make a token more or less likely; repeatable.")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text; repeatable.")] = None
    min_new_tokens: Annotated[int | None, typer.Option(min=0, help="Shortest output, in tokens.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest output, in tokens.")] = None
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Of sampling; 0 = greedy or beam search.")] = None
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample from the k most probable; 0 = all.")] = None
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling, over 0.")] = None
    min_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Relative to the best token.")] = None
    seed: Annotated[int | None, typer.Option(help="Of the sampling.")] = None

    def specified(self) -> dict[str, Any]:
        """The options that the user specified; they override the checkpoint's generation settings."""
        options = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        if self.logit_bias:
            options["logit_bias"] = dict(map(_parse_bias, self.logit_bias))
        for name in options.keys() - {"num_return_sequences"}:  # its validity depends on the number of beams
            _check(name, options[name])
        return options

    def unused_sampling(self, temperature: float) -> list[str]:
        """The specified options that have no effect without sampling."""
        names = ("top_k", "top_p", "min_p")
        return [f"--{name.replace('_', '-')}" for name in names if not temperature and getattr(self, name) is not None]


@dataclass(frozen=True)
class BeamSearchOptions(GenerationOptions):
    """Generation. Defaults come from the checkpoint; with beam search."""

    num_beams: Annotated[int | None, typer.Option(min=1, help="Beam size; 1 = greedy.")] = None
    length_penalty: Annotated[float | None, typer.Option(help="Above 0, longer output is favoured.")] = None
    num_return_sequences: Annotated[int | None, typer.Option(min=1, help="Outputs per input.")] = None


def _check(name: str, value: Any) -> None:
    """Reject an invalid value, naming its option."""
    try:
        DecodeOptions(**{name: value})
    except UserError as error:
        option = f"'--{name.replace('_', '-')}'"
        raise typer.BadParameter(str(error).removeprefix("decode."), param_hint=option) from None


def _parse_bias(text: str) -> tuple[str, float]:
    """ID=BIAS as a pair."""
    token, _, bias = text.partition("=")
    try:
        return str(int(token)), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} should be ID=BIAS, such as 13=-5", param_hint="'--logit-bias'") from None


@dataclass(frozen=True)
class FileOptions:
    """Rows of a file instead of inputs."""

    file: Annotated[
        str, typer.Option(metavar="FILE", help="Read each row of a .csv, .tsv or .jsonl, each line of a .txt.")
    ] = ""
    column: Annotated[str, typer.Option(metavar="NAME", help="Column of texts; default: the recipe's, or 'text'.")] = ""
    text_pair: Annotated[str, typer.Option(metavar="NAME", help="Column of second texts: of pairs, of contexts.")] = ""

    def check(self, inputs: list[str] | None) -> None:
        """Reject options that would have no effect."""
        if self.file and inputs:
            raise typer.BadParameter("give INPUTs or a file, not both", param_hint="'--file'")
        for name in ("column", "text_pair"):
            if getattr(self, name) and not self.file:
                raise typer.BadParameter("is for a file: give --file too", param_hint=f"'--{name.replace('_', '-')}'")


@dataclass(frozen=True)
class AnswerOptions:
    """Predictions: what they include and how they are made; each option for the models that have it."""

    alignments: Annotated[bool, typer.Option("--alignments", help="Also word alignments from attention.")] = False
    log_probabilities: Annotated[bool, typer.Option("--log-probabilities", help="Also of each token; with --json.")] = (
        False
    )
    truncate: Annotated[bool, typer.Option("--truncate", help="Truncate longer inputs, with a warning.")] = False
    draft: Annotated[str, typer.Option(metavar="MODEL", help="Smaller model for speculative decoding.")] = ""
    lookup: Annotated[bool, typer.Option("--lookup", help="Speculate with n-grams of the prompt.")] = False
    context: Annotated[Path | None, typer.Option(metavar="FILE", help="The context of the questions.")] = None
    best: Annotated[int | None, typer.Option(min=1, help="Answers per question, or words per mask.")] = None
    threshold: Annotated[
        float | None, typer.Option(help="Margin of 'no answer'; of multi-label classifiers, the lowest probability.")
    ] = None

    def specified(self) -> dict[str, Any]:
        """The options that the user specified."""
        return _specified(self)


@dataclass(frozen=True)
class FewShotOptions:
    """Language models: perplexity of text, or few-shot accuracy."""

    shots: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of examples in the prompt.")] = ""
    by: Annotated[str, typer.Option(help="Choose by likelihood of the labels, or compare the generation.")] = ""
    template: Annotated[str, typer.Option(metavar="TEXT", help="Of an example; else '{text} → {label}\\n'.")] = ""
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions with other examples.")] = 3
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of questions; 0 = all.")] = 0
    stride: Annotated[int, typer.Option(min=0, help="Tokens that a window moves by; 0 = half the context.")] = 0

    def specified(self) -> dict[str, Any]:
        """The options that the user specified."""
        return _specified(self)


@dataclass(frozen=True)
class EvalOptions:
    """What is scored, and what is reported."""

    source: Annotated[str, typer.Option(help="Side or column of inputs.")] = ""
    target: Annotated[str, typer.Option(help="Side or column of references.")] = ""
    text_pair: Annotated[str, typer.Option(help="Column of second texts: of pairs, of contexts.")] = ""
    columns: Annotated[str, typer.Option(metavar="NAME,…", help="Of a file without header.")] = ""
    truncate: Annotated[bool, typer.Option("--truncate", help="Truncate longer inputs.")] = False
    by_length: Annotated[bool, typer.Option("--by-length", help="Also BLEU by length of the source.")] = False
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="BLEU by length, shots, confusions.")] = None
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write reference and prediction of each sample.")
    ] = None
    lowercase: Annotated[bool | None, typer.Option(help="Ignore case; default: as in training.")] = None

    def specified(self) -> dict[str, Any]:
        """The options that the user specified."""
        return _specified(self)


def _specified(group: Any) -> dict[str, Any]:
    return {field.name: value for field in fields(group) if (value := getattr(group, field.name)) != field.default}
