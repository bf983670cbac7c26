"""Labelled recordings: a folder per class, names of files that contain the label, and tables with paths."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from regard.audio import sources
from regard.audio.read import list_recordings
from regard.data.files import Record, expand
from regard.data.splits.hashed import fractions
from regard.data.splits.selected import selected_split
from regard.data.splits.substrings import CONTAINING
from regard.data.targets import TARGETS
from regard.errors import UserError
from regard.tasks.classify.files import parse_label
from regard.tasks.classify.options import ClassifyData

BY_CONTENT = ("", "source", "audio")  # values of data.split_by: equal recordings are in the same split


def locate(data: ClassifyData, split: str, base_dir: Path | None) -> Path:
    """The table, folder or archive of a split."""
    if data.synthetic:
        raise UserError(f"data.synthetic = '{data.synthetic}' is not a dataset of recordings: name a folder or a table")
    return sources.locate(data, split, base_dir)


def files(path: Path) -> Mapping[str, Path]:
    """The files of a path; of a folder all its recordings."""
    if path.is_dir():
        return {file.relative_to(path).as_posix(): file for file in list_recordings(path)}
    return expand(path)


def records(data: ClassifyData, split: str, base_dir: Path | None) -> Iterator[Record]:
    """Every recording of a split: its name is the source, its label the target.

    Where a split is held out of train, equal recordings are in the same group, whatever their names.
    """
    locate(data, split, base_dir)
    if data.split_by == CONTAINING:
        raise UserError(f"data.split_by = '{CONTAINING}' is for texts: name a column, or leave it out")
    label = data.label or "label"
    column = "" if data.split_by in (*BY_CONTENT, data.audio) else data.split_by
    required = {"data.label": label, "data.split_by": column}
    json_types = {label: TARGETS[data.problem_type].json_types}
    by_content = any(fractions(data)) and not column
    for name, fields, location in sources.list_split(data, split, base_dir, required, json_types):
        group = fields[column] if column else sources.content_group(name) if by_content else name
        target = parse_label(data, fields[label], location)
        yield Record(name, target, "", group, location, split=selected_split(fields, data, split, location))
