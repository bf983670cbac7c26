"""TOML tables ↔ frozen dataclasses: a closed schema whose errors name the key, its location and the nearest key."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.config.aliases import canonical_key, canonical_value, suggestion
from regard.errors import UserError, nearest

Table = dict[str, Any]  # a table of TOML

TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table without dates",
}


DATA_SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".conll")


class Locations:
    """Where a key was given: file and line, or the command line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()
        self.overridden: dict[str, str] = {}  # present key → as typed
        self.written: dict[str, str] = {}  # present key → its name in the file, where that is another one
        self.base: Locations | None = None  # of the recipe that this one extends

    def __call__(self, key: str) -> str:
        if any(override == key or override.startswith(f"{key}.") for override in self.overridden):
            return "command line"
        section, _, name = self.written.get(key, key).rpartition(".")
        current = ""
        for line_number, line in enumerate(self.lines, 1):
            if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
                current = header[1]
                if current == key:
                    return f"{self.path}:{line_number}"
            elif current == section and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
                return f"{self.path}:{line_number}"
        return self.base(key) if self.base else str(self.path)


def override(table: Table, assignment: str, types: Mapping[str, Any]) -> str:
    """Apply one `key.sub=value` to the table; the value is TOML, or else plain text. Returns the key's present name.

    `types` are those of the top-level keys: where the key is text, 2 is read as text.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        is_file = not equals and Path(key.removesuffix(".gz")).suffix in DATA_SUFFIXES
        hint = f"; did you mean data.train={key}?" if is_file else ", such as train.max_steps=300"
        raise UserError(f"override '{assignment}': expected key=value{hint}")
    model = table.get("model")
    key = canonical_key(key.strip(), str(model.get("family")) if isinstance(model, dict) else "")
    *sections, name = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UserError(f"override '{assignment}': '{section}' is a value and has no keys of its own")
        types = _types_of(types[section]) if _is_section(types.get(section)) else {}
    value = canonical_value(key, _value(text.strip()))
    table[name] = text.strip() if types.get(name) is str and not isinstance(value, str) else value
    return key


def _value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed.pop("value")
    return value if not parsed and isinstance(value, str | int | float | bool | list | dict) else text


@cache
def _types_of(schema: type) -> dict[str, Any]:
    return get_type_hints(schema)


def build(
    schema: type, table: Table, prefix: str, location: Callable[[str], str], root: Mapping[str, Any] | None = None
) -> Any:
    """A dataclass from its table; every key is checked by name and type.

    `root` are the types of the top-level keys, if they are not those of the dataclass or this is one of its sections.
    """
    types = root if root and not prefix else _types_of(schema)
    root = root or types
    values = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if name not in types:
            hint = _elsewhere(name, root) or suggestion(name, prefix.rstrip("."), types)
            raise UserError(f"{location(key)}: unknown key '{key}'{hint}")
        hint = types[name]
        if isinstance(value, dict) and _is_section(hint):
            values[name] = build(hint, value, f"{key}.", location, root)
            continue
        fits, converted = _convert(value, hint)
        if not fits:
            is_choice = get_origin(hint) is Literal
            expected = nearest(str(value), get_args(hint)) if is_choice else f"; expected {_type_name(hint)}"
            raise UserError(f"{location(key)}: {key} = {show(value)} does not fit{expected}")
        values[name] = converted
    try:
        return schema(**values)
    except UserError as error:
        key = re.match(r"[\w.]+", str(error))
        raise UserError(f"{location(key[0] if key else prefix)}: {error}") from None


def _is_section(hint: object) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")


def _elsewhere(name: str, root: Mapping[str, Any]) -> str:
    """The end of an error about a key in the wrong section: the sections that have a key of this name."""
    keys = [f"'{name}'"] if name in root and not _is_section(root[name]) else []
    keys += [f"'{section}.{name}'" for section, hint in root.items() if _is_section(hint) and name in _types_of(hint)]
    return f"; did you mean {' or '.join(keys)}?" if keys else ""


def _convert(value: object, hint: object) -> tuple[bool, object]:
    """Whether a TOML value fits a type, and the value as that type: integers are floats too, lists are tuples."""
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
        return (True, float(value)) if abs(value) < 1 << 1000 else (False, value)
    return type(value) is hint and value == value, value


def _is_plain(value: object) -> bool:
    """Whether a value can be written as TOML again: text, numbers, booleans, lists and tables, not dates."""
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, str | int | float) and value == value


def _type_name(hint: object) -> str:
    """A type in words."""
    arguments = [argument for argument in get_args(hint) if argument is not Ellipsis]
    if get_origin(hint) is tuple:
        return f"a list of {TYPE_NAMES[arguments[0]]}" + (f" × {len(arguments)}" if len(arguments) > 1 else "")
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(TYPE_NAMES[argument] for argument in arguments)
    return TYPE_NAMES.get(get_origin(hint) or hint, "a table")


def show(value: object) -> str:
    """A value as in the file."""
    return write(value) if _is_plain(value) else str(value)


def write_key(name: str) -> str:
    """A key, quoted where TOML requires it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else write(name)


def write(value: object) -> str:
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
