"""What `regard run` is given: words of the command line, lines of stdin, or the rows of a file with their places."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from regard.cli.options import Rows, given_texts
from regard.data.files import BRACES, each_of, expand, find, json_lines, lines, rows
from regard.errors import UserError
from regard.tasks.answer.files import questions
from regard.tasks.registry import options_of
from regard.tasks.tag.files import sentences

FIRST = {"answer": ("question",), "translate": ("source", "text"), "tag": ("text", "tokens")}  # columns; else "text"

TAGGED = (".conll", ".iob", ".bio")

FIRST_OF_ALL = "\0"  # the first column, whatever it is called


class Given(NamedTuple):
    """An input as a model reads it: a text, two of them, or the words of one; and where it stood."""

    input: Any
    place: str = ""
    blank: bool = False  # there is nothing to read, and the answer is empty

    @property
    def shown(self) -> str:
        """Its beginning, for a warning."""
        text = self.input if isinstance(self.input, str) else " ".join(self.input)
        return f"{self.place}: {text[:60]!r}…" if self.place else f"{text[:60]!r}…"


def from_words(inputs: list[str] | None, quiet: bool = False) -> Iterator[Given]:
    """The words, else the lines of stdin; words that are the name of a file may have been meant otherwise."""
    name = next((text for text in inputs or () if os.path.isfile(text)), "")
    if name and not quiet:
        print(f"note: {name} is a file, but the words themselves are read: --file reads a file", file=sys.stderr)
    return (Given(text, blank=not inputs and not text.strip()) for text in given_texts(inputs))


def from_file(model: Any, task: str, wanted: Rows, context: bool = False, quiet: bool = False) -> Iterator[Given]:
    """The rows of a file, or of all that a pattern means; with one `context` for all, questions stand alone."""
    roles, path = roles_of(model, task, wanted, context, quiet), find(wanted.file)
    return _rows(path, roles) if BRACES.search(str(path)) else each_of(path, lambda file: _inputs(file, roles))


class Roles(NamedTuple):
    """Which columns a model reads, and how."""

    asked: str  # the column that was named,
    usual: tuple[str, ...]  # else the first of these that a file has
    second: str  # of the second text, if there is one
    task: str
    data: Any
    unsure: bool  # whether a tab in a text would be taken for the border between two
    quiet: bool


def roles_of(model: Any, task: str, wanted: Rows, context: bool, quiet: bool = False) -> Roles:
    """As asked, else as in the model's recipe, else by the usual names."""
    data = model.recipe.data if model.recipe else options_of(task).data()
    usual = FIRST.get(model.task, ("text",))
    usual = tuple(filter(None, (getattr(data, usual[0], ""), *usual)))
    second = _second(model, task, wanted.other, data, context)
    return Roles(wanted.column, usual, second, task, data, model.is_classifier and model.network.paired is None, quiet)


def _second(model: Any, task: str, other: str, data: Any, context: bool) -> str:
    """The column of what is read beside a text: the one that a question is asked of, or the second of a pair."""
    if task == "answer":
        if context and other:
            raise UserError(f"--other {other} and --context: questions are asked of the one or of the other")
        return "" if context else other or data.context or "context"
    paired = model.network.paired if model.is_classifier else model.is_encoder and task in ("embed", "fill") and None
    if other and paired is False:
        raise UserError(f"--other {other}: this model reads one text at a time")
    return other or (data.text_pair or "text_pair" if paired else "")


def _inputs(path: Path, roles: Roles) -> Iterator[Given]:
    """Those of one file: its rows, its lines, its sentences, or its questions."""
    name, named = path.name.removesuffix(".gz"), roles.asked
    if roles.task == "tag" and name.endswith(TAGGED):
        return (Given(list(each.words), each.location) for each in sentences(path, roles.data))
    if roles.task == "answer" and name.endswith(".json"):
        asked = questions(path, roles.data)
        return (Given((each.text, each.context) if roles.second else each.text, each.location) for each in asked)
    if name.endswith(".txt") and not named and not roles.second and "\t" not in next(lines(path)):
        return (Given(text, f"{path}:{number}", not text.strip()) for number, text in enumerate(lines(path), 1))
    return _rows(path, roles)


def _rows(path: Path, roles: Roles) -> Iterator[Given]:
    """Those of a table."""
    names, data = _names(path), roles.data
    columns = data.columns if len(data.columns) == len(names) else ()
    column = roles.asked or _usual(path, names, columns, roles)
    prefix = data.prefix if roles.task == "translate" and data.prefix in (*names, *columns) else ""
    required = {"--column": column if column != FIRST_OF_ALL else "", "--other": roles.second, "prefix": prefix}
    required = {option: name for option, name in required.items() if name}
    known = columns if {*required.values()} <= {*columns} else ()
    values = {column: (list,)} if roles.task == "tag" and _is_jsonl(path) else {}
    for fields, place in rows(path, known, required, values):
        text = fields[next(iter(fields)) if column == FIRST_OF_ALL else column]
        yield _given(text, fields[roles.second] if roles.second else None, fields.get(prefix, ""), place, roles)


def _given(text: str, other: str | None, prefix: str, place: str, roles: Roles) -> Given:
    """A row as an input."""
    if other is not None:
        full = text.strip() and other.strip() if roles.task == "answer" else (text + other).strip()
        return Given((text, other), place, not full)
    words = _words(text) if roles.task == "tag" else None
    if words is not None:
        return Given(words, place, not words)
    text = text.replace("\t", " ") if roles.unsure else text
    return Given(f"<{prefix}> {text}" if prefix else text, place, not text.strip())


def _words(text: str) -> list[str] | None:
    """The words of a sentence that a file has as a list."""
    try:
        found = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else None


def _is_jsonl(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _names(path: Path) -> list[str]:
    """What stands in a table's first line, or what the columns of other files are called."""
    if "" in expand(path) and _is_jsonl(path):
        return list(next((each for each in json_lines(path) if each is not None), {}))
    fields = next(rows(path)).fields
    return list(fields.values() if "" in expand(path) else fields)


def _usual(path: Path, names: list[str], columns: tuple[str, ...], roles: Roles) -> str:
    """The first of the usual columns that is there, else the only one; where the first was learnt from, that."""
    if found := next((name for name in roles.usual if name in (*names, *columns)), ""):
        return found
    if roles.task == "translate" and roles.data.train and not roles.data.source and not _is_jsonl(path):
        return FIRST_OF_ALL
    if len(names) != 1:
        return roles.usual[0]
    if not _is_jsonl(path) and not roles.quiet:
        print(f"note: {path}: line 1, {names[0]!r:.60}, is taken as the name of the only column", file=sys.stderr)
    return names[0]
