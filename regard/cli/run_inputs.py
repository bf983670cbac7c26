"""The inputs of `regard run`: arguments, lines of stdin, or the rows of a file with their locations."""

import os
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

from regard.cli.options import FileOptions, read_texts
from regard.data.files import BRACES, each_of, expand, find, json_lines, lines, rows
from regard.errors import report
from regard.tasks.predictor import Predictor, RunInput

FIRST = "\0"  # the first column, whatever its name


def read_inputs(
    predictor: Predictor, inputs: list[str] | None, options: FileOptions, has_context: bool, quiet: bool
) -> Iterator[RunInput]:
    """The rows of a file, the arguments, or the lines of stdin."""
    if options.file:
        return from_file(predictor, options, has_context, quiet)
    named = predictor.from_arguments(inputs) if inputs else None
    if named is not None:
        return named
    name = next((text for text in inputs or () if os.path.isfile(text)), "")
    if name and not quiet:
        report("note", f"{name} is a file, but its name is taken as the input: --file reads a file")
    return (RunInput(text if inputs or text.strip() else "") for text in read_texts(inputs))


def from_file(predictor: Predictor, options: FileOptions, has_context: bool, quiet: bool = False) -> Iterator[RunInput]:
    """The rows of a file, or of all files of a pattern."""
    path = find(options.file)
    second = predictor.second_column(options.text_pair, has_context)
    if BRACES.search(str(path)):
        return _table(path, predictor, options, second, quiet)
    return each_of(path, lambda file: _inputs(file, predictor, options, second, quiet))


def _inputs(path: Path, predictor: Predictor, options: FileOptions, second: str, quiet: bool) -> Iterator[RunInput]:
    """The inputs of one file: in the task's own format, a line each, or a row each."""
    special = predictor.read_special(path, bool(second))
    if special is not None:
        return special
    plain = path.name.removesuffix(".gz").endswith(".txt") and not options.column and not second
    if plain and "\t" not in next(lines(path)):
        numbered = enumerate(lines(path), 1)
        return (RunInput(text if text.strip() else "", f"{path}:{line}", {"text": text}) for line, text in numbered)
    return _table(path, predictor, options, second, quiet)


def _table(path: Path, predictor: Predictor, options: FileOptions, second: str, quiet: bool) -> Iterator[RunInput]:
    names = _names(path)
    data: Any = predictor.data
    columns = data.columns if len(data.columns) == len(names) else ()
    column = options.column or _usual_column(path, names, columns, predictor, quiet)
    extra = predictor.extra_columns((*names, *columns))
    required = {"--column": "" if column == FIRST else column, "--text-pair": second}
    required |= {f"data.{name}": name for name in extra}
    required = {option: name for option, name in required.items() if name}
    known = columns if {*required.values()} <= {*columns} else ()
    types = predictor.column_types(column) if _is_jsonl(path) else {}
    keeps_objects = options.results and _is_jsonl(path) and "" in expand(path)
    objects = json_lines(path) if keeps_objects else repeat(None)  # `rows` has their texts only
    for (fields, location), held in zip(rows(path, known, required, types), objects, strict=False):
        text = fields[next(iter(fields)) if column == FIRST else column]
        text = text if text.strip() else ""
        others = {name: fields[name] for name in extra}
        parsed = predictor.parse_row(text, fields[second] if second else None, others, location)
        yield parsed._replace(row=held or fields)


def _is_jsonl(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _names(path: Path) -> list[str]:
    """The first line of a table, or the column names of other files."""
    if "" in expand(path) and _is_jsonl(path):
        return list(next((each for each in json_lines(path) if each is not None), {}))
    fields = next(rows(path)).fields
    return list(fields.values() if "" in expand(path) else fields)


def _usual_column(path: Path, names: list[str], columns: tuple[str, ...], predictor: Predictor, quiet: bool) -> str:
    """The recipe's column, or the first with a usual name, else the only one."""
    usual = (getattr(predictor.data, predictor.text_columns[0], ""), *predictor.text_columns)
    usual = tuple(filter(None, usual))
    if name := next((name for name in usual if name in (*names, *columns)), ""):
        return name
    if predictor.takes_first_column() and not _is_jsonl(path):
        return FIRST
    if len(names) != 1:
        return usual[0]
    if not _is_jsonl(path) and not quiet:
        report("note", f"{path}: line 1, {names[0]!r:.60}, is taken as the name of the only column")
    return names[0]
