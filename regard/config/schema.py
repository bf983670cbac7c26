"""TOML tables ↔ frozen dataclasses: a closed schema whose errors name the key, its place and the nearest one."""

import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.errors import UserError, nearest

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table without dates"}


class Places:
    """Says where a key was given: file and line, or the command line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines, self.overridden = path, text.splitlines(), set[str]()
        self.base: Places | None = None  # of the recipe that this one stands on

    def __call__(self, key: str) -> str:
        if any(given == key or given.startswith(f"{key}.") for given in self.overridden):
            return "command line"
        section, _, name = key.rpartition(".")
        here = ""
        for number, line in enumerate(self.lines, 1):
            if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
                here = header[1]
                if here == key:
                    return f"{self.path}:{number}"
            elif here == section and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
                return f"{self.path}:{number}"
        return self.base(key) if self.base else str(self.path)


def override(table: dict[str, Any], given: str, kind: type | None = None) -> str:
    """Put one `key.sub=value` into the table, the value read as TOML or else as bare text; gives the key.

    Where the dataclass `kind` says that the key is text, 2 is text too.
    """
    key, equals, text = given.partition("=")
    if not equals or not key.strip():
        raise UserError(f"override '{given}' is not of the form key=value, such as train.max_steps=300")
    *sections, name = path = key.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UserError(f"override '{given}': '{section}' is a value and has no keys of its own")
    value = _value(text.strip())
    table[name] = text.strip() if _hint(kind, path) is str and not isinstance(value, str) else value
    return key.strip()


def _hint(kind: Any, path: list[str]) -> Any:
    """The type of a field of a field; nothing where that is not said."""
    for name in path:
        kind = _hints(kind).get(name) if hasattr(kind, "__dataclass_fields__") else None
    return kind


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed.pop("value")
    return value if not parsed and isinstance(value, str | int | float | bool | list | dict) else text


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def build(
    kind: type, table: dict[str, Any], prefix: str, places: Callable[[str], str], whole: type | None = None
) -> Any:
    """A dataclass from its table; every key is checked by name and type. `whole` is what it is a section of."""
    hints, whole = _hints(kind), whole or kind
    values = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if name not in hints:
            raise UserError(f"{places(key)}: unknown key '{key}'{_elsewhere(name, whole) or nearest(name, hints)}")
        hint = hints[name]
        if isinstance(value, dict) and _is_section(hint):
            values[name] = build(hint, value, f"{key}.", places, whole)
            continue
        fits, converted = _convert(value, hint)
        if not fits:
            options = nearest(str(value), get_args(hint)) if get_origin(hint) is Literal else f"; expected {_say(hint)}"
            raise UserError(f"{places(key)}: {key} = {show(value)} does not fit{options}")
        values[name] = converted
    try:
        return kind(**values)
    except UserError as error:
        key = re.match(r"[\w.]+", str(error))
        raise UserError(f"{places(key[0] if key else prefix)}: {error}") from None


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")


def _elsewhere(name: str, whole: type) -> str:
    """The end of an error about a key that stands in the wrong place: where there is one of that very name."""
    hints = _hints(whole)
    found = [f"'{name}'"] if name in hints and not _is_section(hints[name]) else []
    found += [f"'{each}.{name}'" for each, hint in hints.items() if _is_section(hint) and name in _hints(hint)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether a TOML value fits a type, and the value as that type: whole numbers serve as numbers, lists as tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        fitting = [option for option in arguments if type(value) is option]
        return (True, value) if fitting else _convert(value, arguments[-1])
    if origin is Literal:
        return value in arguments, value
    if origin is tuple:
        if not isinstance(value, list) or (arguments[-1] is not Ellipsis and len(value) != len(arguments)):
            return False, value
        items = [_convert(item, arguments[0]) for item in value]
        return all(fits for fits, _ in items), tuple(item for _, item in items)
    if origin is dict:
        return isinstance(value, dict) and _is_plain(value), value
    if hint is float and type(value) is int:
        return True, float(value)
    return type(value) is hint and value == value, value


def _is_plain(value: Any) -> bool:
    """Text, numbers, booleans, lists and tables: what can be written back (dates cannot)."""
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, str | int | float) and value == value


def _say(hint: Any) -> str:
    """A type in words."""
    arguments = [argument for argument in get_args(hint) if argument is not Ellipsis]
    if get_origin(hint) is tuple:
        return f"a list of {WORDS[arguments[0]]}" + (f" × {len(arguments)}" if len(arguments) > 1 else "")
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(WORDS[argument] for argument in arguments)
    return WORDS.get(get_origin(hint) or hint, "a table")


def show(value: Any) -> str:
    """A value as it stands in the file."""
    return write(value) if _is_plain(value) else str(value)


def write_key(name: str) -> str:
    """A key, quoted where TOML asks for it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else write(name)


def write(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(write(item) for item in value)}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{write_key(name)} = {write(item)}" for name, item in value.items())
        return f"{{{inside}}}"
    return repr(value)
