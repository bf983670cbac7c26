"""The help: field terms, metavars, defaults, examples that are valid command lines, and names used elsewhere."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from calling import Call

from regard.cli.main import app
from regard.config.recipe_files import shipped_recipes

GROUP: Any = typer.main.get_command(app)


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in GROUP.commands.items():
        if hasattr(command, "commands"):
            yield from (((name, below), inner) for below, inner in command.commands.items())
        else:
            yield (name,), command


COMMANDS = dict(commands())
every_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


@every_command
def test_help_has_metavars_and_no_types(path: tuple[str, ...], call: Call) -> None:
    code, out, _ = call(*path, "--help")
    assert code == 0
    assert not re.search(r"<\w+|\[x|x[<>]=|\{[A-Z]+\}", out)
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{path}: {parameter.name} has no help"


@every_command
def test_examples_are_valid_command_lines(path: tuple[str, ...], call: Call) -> None:
    _, out, _ = call(*path, "--help")
    examples = out.split("Examples:\n")[1].splitlines()
    assert examples
    for example in examples:
        program, *words = shlex.split(example)
        assert program == "regard" and tuple(words[: len(path)]) == path
        arguments = words[len(path) :]
        COMMANDS[path].make_context(" ".join(path), list(arguments))  # raises where an option is unknown
        if path[0] in ("train", "doctor"):
            assert arguments[0] in shipped_recipes() or arguments[0].endswith(".toml")


def test_defaults_are_shown(call: Call) -> None:
    _, out, _ = call("run", "--help")
    text = " ".join(out.split())
    for default in ("[default: 32]", "[default: auto]", "[default: float32]"):
        assert default in text
    assert "Generation: Defaults come from the checkpoint's generation_config.json." in text


@pytest.mark.parametrize(
    ("verb", "name", "alias"),
    [
        ("run", "--precision", "--dtype"),
        ("run", "--log-probabilities", "--logprobs"),
        ("run", "--max-new-tokens", "--max-tokens"),
        ("chat", "--max-new-tokens", "--max-tokens"),
        ("search", "--top", "--top-k"),
        ("run", "--draft-model", "--draft"),
        ("run", "--prompt-lookup", "--lookup"),
    ],
)
def test_names_of_other_tools_are_accepted(verb: str, name: str, alias: str, call: Call) -> None:
    (option,) = [each for each in COMMANDS[(verb,)].params if name in each.opts]
    assert alias in option.opts
    listed = set(re.findall(r"--[a-z-]+", call(verb, "--help")[1]))
    assert name in listed
    assert (alias in listed) == (alias not in ("--draft", "--lookup"))  # former names are not listed


def test_the_overview_is_not_truncated(call: Call) -> None:
    _, out, _ = call("--help")
    assert "..." not in out.split("Commands:")[1]
    assert list(GROUP.list_commands(None)) == [
        line.split()[0] for line in out.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    ]
