"""What the verbs print: one JSON document, or tables that a person reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.options import Output
from regard.progress import in_bytes

LONG = 20  # characters of a word that may be broken

PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}

PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def plain(value: Any) -> Any:
    """The value in JSON's own types: dataclasses, paths, tuples, and numbers of numpy and torch."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence | set | frozenset):
        return [plain(each) for each in value]
    as_list = getattr(value, "tolist", None)
    return as_list() if as_list else str(value)


def document(value: Any, indent: int | None = 2) -> str:
    """One JSON document, in the reader's own letters."""
    return json.dumps(plain(value), ensure_ascii=False, indent=indent)


def emit(value: Any, output: Output, title: str) -> None:
    """Print a verb's result: JSON, or the value's nested tables."""
    if output.json:
        print(document(value))
        return
    console = Console(highlight=False)
    facts = plain(value)
    if not isinstance(facts, dict):
        facts = {} if facts is None else {title: facts}
    for table in _tables(facts, title, console.width):
        console.print(table)


def harmless(text: str) -> str:
    """A text for a terminal: control characters, which could do more than be read, as pictures of them."""
    return text.translate(PICTURES)


def emit_findings(findings: Any, output: Output) -> None:
    """The doctor's tables, then errors and warnings with what to do about each."""
    emit(findings if output.json else findings.facts, output, "regard doctor")
    if output.json:
        return
    console = Console(highlight=False)
    for style, word, lines in (("bold red", "error", findings.errors), ("yellow", "warning", findings.warnings)):
        for line in lines:
            console.print(Text.assemble((f"{word}: ", style), line), soft_wrap=True)
    if not findings.errors and not findings.warnings and not output.quiet:
        console.print(Text("Nothing stands in the way of this run.", "green"))


def _tables(facts: dict[str, Any], title: str, width: int) -> list[Table]:
    """Flat values in one table of two columns; each nested group in a table of its own, after it.

    One whose columns have no room side by side has a line for each row instead: key=value key=value …
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
            if names and _room(rows, names, columns) > width:
                tables.append(_pairs({each: _listed(row) for each, row in zip(names, rows, strict=True)}, name))
            else:
                tables.append(_grid(name, rows, names, columns))
        else:
            inner = value if isinstance(value, dict) else {str(place): each for place, each in enumerate(value)}
            tables += _tables(inner, name, width)
    return tables


def _is_group(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def _pairs(facts: dict[str, Any], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(str(name)), Text(say(value, name)))
    return table


def _room(rows: list[dict[str, Any]], names: list[str], columns: list[str]) -> int:
    """The characters that a table needs if no heading and no value but a long one is broken inside a word."""
    said = [[column, *(say(row.get(column)) for row in rows)] for column in columns]
    words = [[word for each in cells for word in each.split() if len(word) <= LONG] for cells in said]
    return max(map(len, names)) + 4 + sum(max(map(len, each), default=LONG) + 3 for each in words)


def _listed(row: dict[str, Any]) -> str:
    """As a recipe says it: numbers without marks between their thousands, true and false. Prose has its own lines."""
    told = {key: say(value, key) for key, value in row.items() if value is not None}
    told |= {key: str(value).lower() for key, value in row.items() if isinstance(value, bool)}
    told |= {key: told[key].replace(",", "") for key, value in row.items() if isinstance(value, int | float)}
    prose = [value for value in told.values() if len(value) > 2 * LONG and " " in value]
    return "\n".join(["  ".join(f"{key}={value}" for key, value in told.items() if value not in prose), *prose])


def _grid(title: str, rows: list[dict[str, Any]], names: list[str] | None, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    if names:
        table.add_column("", no_wrap=True)  # a name is there to be copied
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(
            *([Text(str(names[index]))] if names else []), *(Text(say(row.get(column))) for column in columns)
        )
    return table


def say(value: Any, name: str = "") -> str:
    """A value in a cell: sizes and times by the name's last word, thousands set apart, four figures of a fraction."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and name.endswith("bytes"):
        return in_bytes(value)
    if isinstance(value, int | float) and name.endswith("seconds") and value >= 120:
        return f"{value / 60:.0f} minutes" if value < 7200 else f"{value / 3600:.1f} hours"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(say(each) for each in value)
    return str(value)
