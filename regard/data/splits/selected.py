"""Splits that are selected by the values of columns: data.test = {speaker = ["anna", "ben"]}."""

from collections.abc import Iterable, Iterator, Mapping

from regard.config.options import DataOptions
from regard.data.files import Record
from regard.data.splits.hashed import fractions, own_file, split_of
from regard.errors import UserError, nearest

HELD_OUT = ("test", "validation")  # a sample that both select is in the first


def selected_split(fields: Mapping[str, str], data: DataOptions, split: str, location: str) -> str:
    """The held-out split that selects a row of the file of `split`; empty if none does.

    A split selects a row in which every column that it names has one of the listed values.
    """
    for name in HELD_OUT if not own_file(data, split) else ():
        selection = getattr(data, name)
        if isinstance(selection, dict) and _selects(selection, fields, f"data.{name}", location):
            return name
    return ""


def _selects(selection: Mapping[str, object], fields: Mapping[str, str], option: str, location: str) -> bool:
    for column, values in selection.items():
        if column not in fields:
            raise UserError(f"{location}: {option} names '{column}', which is no column{nearest(column, fields)}")
        if fields[column] not in map(str, values if isinstance(values, list) else [values]):
            return False
    return True


def held(records: Iterable[Record], data: DataOptions, split: str) -> Iterator[Record]:
    """The records of a split: all of a file of its own, else those selected for it, and of the others by their hash."""
    if own_file(data, split):
        return iter(records)
    shares = fractions(data)
    return (record for record in records if (record.split or split_of(record.group, *shares)) == split)
