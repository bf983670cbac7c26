"""Output of the commands: one JSON document, or tables."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.options import Output
from regard.errors import escape_controls
from regard.progress import in_bytes

if TYPE_CHECKING:
    from regard.tasks.inspection import Findings

HEADINGS = {"interval": "± 95 %"}  # of columns, in tables only

CORNERS = {"confusion_matrix": "reference ↓\nprediction →"}  # the names of a table's axes, by its title

LONG = 20  # characters of a word that may be broken


def to_jsonable(value: object) -> Any:
    """The value in JSON types: dataclasses, paths, tuples, and values of numpy and torch are converted."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(each) for key, each in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence | set | frozenset):
        return [to_jsonable(each) for each in value]
    as_list = getattr(value, "tolist", None)
    return as_list() if as_list else str(value)


def to_json(value: object, indent: int | None = 2) -> str:
    """One JSON document; characters beyond ASCII stay as they are."""
    return json.dumps(to_jsonable(value), ensure_ascii=False, indent=indent)


def emit(value: object, output: Output, title: str) -> None:
    """Print a result as JSON or as nested tables."""
    if output.json:
        print(to_json(value))
        return
    console = Console(highlight=False)
    facts = to_jsonable(value)
    if not isinstance(facts, dict):
        facts = {} if facts is None else {title: facts}
    for table in _tables(facts, title, console.width):
        console.print(table)


def printable(text: str) -> str:
    """A text for stdout: without control characters in a terminal, as it is elsewhere."""
    return escape_controls(text) if sys.stdout.isatty() else text


def _text(value: object) -> Text:
    """A cell, title or heading: no markup, no control characters."""
    return Text(escape_controls(str(value)))


def emit_findings(findings: "Findings", output: Output) -> None:
    """The tables of `doctor`, then its errors and warnings."""
    emit(findings if output.json else findings.facts, output, "regard doctor")
    if output.json:
        return
    console = Console(highlight=False)
    for style, word, lines in (("bold red", "error", findings.errors), ("yellow", "warning", findings.warnings)):
        for line in lines:
            console.print(Text.assemble((f"{word}: ", style), escape_controls(line)), soft_wrap=True)
    if not findings.errors and not findings.warnings and not output.quiet:
        console.print(Text("No problems found.", "green"))


def _tables(facts: dict[str, Any], title: str, width: int) -> list[Table]:
    """Flat values in one table of two columns, then a table per nested group.

    A group that is too wide for the terminal has a line per row instead: key=value key=value …
    """
    flat = {name: value for name, value in facts.items() if not _is_group(value)}
    tables = [_pairs(flat, title)] if flat else []
    for name, value in facts.items():
        if not _is_group(value):
            continue
        rows = list(value.values()) if isinstance(value, dict) else value
        if rows and all(isinstance(row, dict) and not any(map(_is_group, row.values())) for row in rows):
            names = list(value) if isinstance(value, dict) else None
            columns = list(dict.fromkeys(key for row in rows for key in row))
            if names and _width(rows, names, columns) > width:
                tables.append(_pairs({each: _listed(row) for each, row in zip(names, rows, strict=True)}, name))
            else:
                tables.append(_grid(name, rows, names, columns))
        else:
            inner = value if isinstance(value, dict) else {str(index): item for index, item in enumerate(value)}
            tables += _tables(inner, name, width)
    return tables


def _is_group(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def _pairs(facts: dict[str, Any], title: str) -> Table:
    table = Table(title=_text(title), title_justify="left", title_style="bold", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(_text(_label(name, value)), _text(format_value(value, name)))
    return table


def _label(name: str, value: object) -> str:
    """The name of a fact without the unit, which its text has."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return name
    if name.endswith("bytes"):
        return name.removesuffix("bytes").rstrip("_") or "size"
    return f"{name.removesuffix('seconds')}time" if name.endswith("seconds") else name


def _width(rows: list[dict[str, Any]], names: list[str], columns: list[str]) -> int:
    """The characters that a table needs so that only long words are broken."""
    total = max(map(len, names)) + 4
    for column in columns:
        cells = [column, *(format_value(row.get(column)) for row in rows)]
        words = [word for cell in cells for word in cell.split() if len(word) <= LONG]
        total += max(map(len, words), default=LONG) + 3
    return total


def _listed(row: dict[str, object]) -> str:
    """Values as in a recipe: no thousands separators, true and false. Long texts follow on lines of their own."""
    texts = {key: format_value(value, key) for key, value in row.items() if value is not None}
    texts |= {key: str(value).lower() for key, value in row.items() if isinstance(value, bool)}
    texts |= {key: texts[key].replace(",", "") for key, value in row.items() if isinstance(value, int | float)}
    prose = [text for text in texts.values() if len(text) > 2 * LONG and " " in text]
    return "\n".join(["  ".join(f"{key}={text}" for key, text in texts.items() if text not in prose), *prose])


def _grid(title: str, rows: list[dict[str, Any]], names: list[str] | None, columns: list[str]) -> Table:
    table = Table(title=_text(title), title_justify="left", title_style="bold")
    if names:
        table.add_column(CORNERS.get(title, ""), no_wrap=True)  # names can be copied
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(_text(HEADINGS.get(column, column)), justify="right" if numeric else "left", overflow="fold")
    for index, row in enumerate(rows):
        cells = [format_value(row.get(column)) for column in columns]
        table.add_row(*map(_text, [names[index], *cells] if names else cells))
    return table


def format_value(value: object, name: str = "") -> str:
    """A value in a cell: bytes and seconds (by the name's last word) with units, four significant digits of floats."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and name.endswith("bytes"):
        return in_bytes(value)
    if isinstance(value, int | float) and name.endswith("seconds"):
        if value < 120:
            return f"{value:.3g} seconds"
        return f"{value / 60:.0f} minutes" if value < 7200 else f"{value / 3600:.1f} hours"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(format_value(each) for each in value)
    return str(value)
