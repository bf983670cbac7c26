"""How a function becomes a command: groups of options as dataclasses, sections and examples in its help."""

import inspect
import re
from collections.abc import Callable
from copy import copy
from dataclasses import field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

RENAMED = {"draft": "--draft-model", "lookup": "--prompt-lookup", "results": "--output"}  # by parameter
FORMER_NAMES = {"--draft", "--lookup"}  # still accepted, no longer listed

METAVARS = {int: "N", float: "X", Path: "FILE", str: "TEXT"}


def verb(app: typer.Typer, *examples: str, name: str | None = None) -> Callable[..., Callable[..., None]]:
    """Register a function as a command of `app`; `examples` are command lines for its help, without `regard`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        flat = flatten_option_groups(function)
        return app.command(name=name, cls=Command, epilog="\n".join(f"  regard {line}" for line in examples))(flat)

    return register


def option(default: Any, help: str, *aliases: str, **settings: Any) -> Any:
    """A field of a group of options, with other names of its option."""
    return field(default=default, metadata={"help": help, "aliases": aliases, "settings": settings})


def option_name(name: str) -> str:
    """The option that sets a parameter, as users type it."""
    return RENAMED.get(name, f"--{name.replace('_', '-')}")


def flatten_option_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter by an option per field, so that typer sees a flat function."""
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        group = hints[name]
        if not is_dataclass(group):
            flat.append(parameter.replace(annotation=_with_metavar(*get_args(group)), kind=keyword))
            continue
        groups[name] = group
        types = get_type_hints(group)
        for each in fields(group):
            kind = types[each.name]
            names = () if kind == bool | None else (option_name(each.name), *each.metadata["aliases"])
            option = typer.Option(*names, help=each.metadata["help"], **each.metadata["settings"])
            annotation = _with_metavar(kind, option, inspect.getdoc(group))
            flat.append(inspect.Parameter(each.name, keyword, default=each.default, annotation=annotation))

    @wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        function(**values)

    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    command.__signature__ = inspect.Signature(flat)  # pyright: ignore[reportAttributeAccessIssue]
    return command


def _with_metavar(kind: Any, option: Any, section: str | None = None) -> Any:
    """The annotation of an option in a section of the help, with a metavar for its type."""
    option = copy(option)
    option.rich_help_panel = section
    if not option.metavar and get_origin(kind) is Literal:
        option.metavar = "|".join(get_args(kind))
    elif not option.metavar:
        option.metavar = METAVARS.get(next(iter(get_args(kind)), kind))  # of `int | None`: int
    return Annotated[kind, option]


class Command(TyperCommand):
    """A command whose help has its arguments, its own options, a section per group of options, and examples.

    The docstring of a group is its section: the title, then a sentence about all of its options.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """An unknown option of a command that takes recipe keys may be one of those: --epochs 3."""
        known = {name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)}
        takes_keys = any(parameter.name == "overrides" for parameter in self.params)
        for index, word in enumerate(args if takes_keys else ()):
            name, _, value = word.partition("=")
            if word.startswith("--") and name not in known and (key := _recipe_key(name)):
                value = value or next(iter(args[index + 1 :]), "VALUE")
                ctx.fail(f"No such option: {name}; did you mean {key}={value}?")
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"^\{(.+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((parameter.metavar or "", getattr(parameter, "help", None) or ""))
            else:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(title, []).append(_help_record(parameter))
        for section, records in sections.items():
            title, _, note = section.partition(".")
            if records:
                with formatter.section(title):
                    if note.strip():
                        formatter.write_text(" ".join(note.split()))
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write(f"{self.epilog}\n")


def _recipe_key(name: str) -> str:
    """The recipe key that an option of this name would set, if there is one."""
    from regard.config.aliases import ALIASES
    from regard.config.recipe import key_types

    name = name.lstrip("-").replace("-", "_")
    types = key_types("classify")
    keys = [name] if name in types and not is_dataclass(types[name]) else []
    sections = {section: kind for section, kind in types.items() if is_dataclass(kind)}
    keys += [f"{section}.{name}" for section, kind in sections.items() if name in get_type_hints(kind)]
    keys += [key for alias, key in ALIASES.items() if alias.partition(".")[2] == name]
    return next(iter(keys), "")


def _help_record(parameter: Any) -> tuple[str, str]:
    """Names and metavar of an option, its help, and its default where it has one."""
    text = parameter.help or ""
    names = sorted({*parameter.opts} - FORMER_NAMES, key=lambda name: (len(name) > 2, parameter.opts.index(name)))
    names += parameter.secondary_opts
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    if parameter.required:
        text += "  [required]"
    elif parameter.default not in (None, "", False, []) and not parameter.is_flag:
        text += f"  [default: {parameter.default}]"
    return ", ".join(names) + value, text
