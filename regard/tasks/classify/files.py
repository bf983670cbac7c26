"""Labelled samples in files: which split a sample is in, and the labels of a file; and tables of labelled text."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np

from regard.data.files import Record, expand, rows
from regard.data.splits.hashed import file_of, fractions, own_file, split_of
from regard.data.splits.selected import selected_split
from regard.data.splits.stratified import stratified_split
from regard.data.splits.substrings import CONTAINING, LEFT_OUT, assign_splits, normalise
from regard.data.targets import TARGETS, RegressionTargets, validated
from regard.errors import UserError
from regard.tasks.classify.options import ClassifyData

PAIR_SEPARATOR = "\x1e"  # between the two texts of a pair that is stored as one text

MAX_LABELS = 10_000  # more must be another column

MAX_DECIMAL_LABELS = 20  # more labels that all look like DECIMAL must be values

DECIMAL = re.compile(r"-?\d+[.,]\d+")


class Reader(Protocol):
    """How samples of one modality are read."""

    @staticmethod
    def locate(data: ClassifyData, split: str, base_dir: Path | None) -> Path:
        """The file, pattern or folder that contains a split."""
        ...

    @staticmethod
    def files(path: Path) -> Mapping[str, Path]:
        """The files that such a path names."""
        ...

    @staticmethod
    def records(data: ClassifyData, split: str, base_dir: Path | None) -> Iterator[Record]:
        """Every sample of the file that contains a split: its input is the source, its label the target."""
        ...


class TextTable:
    """Tables with one or two columns of text and one of labels."""

    locate = staticmethod(file_of)
    files = staticmethod(expand)

    @staticmethod
    def records(data: ClassifyData, split: str, base_dir: Path | None) -> Iterator[Record]:
        targets = TARGETS[data.problem_type]
        text = data.text or "text"
        label = data.label or "label"
        by_text = ("source",) if data.text_pair else ("source", text)  # of two texts, the first is a column like others
        group = "" if data.split_by in (CONTAINING, *by_text) else data.split_by
        required = {"data.text": text, "data.label": label, "data.text_pair": data.text_pair, "data.split_by": group}
        required = {option: name for option, name in required.items() if name}
        path = file_of(data, split, base_dir)
        for fields, location in rows(path, data.columns, required, {label: targets.json_types}):
            source = fields[text]
            if data.text_pair:
                source = f"{source.replace(PAIR_SEPARATOR, ' ')}{PAIR_SEPARATOR}{fields[data.text_pair]}"
            value = normalise(source) if data.split_by == CONTAINING else fields[group] if group else source
            target = parse_label(data, fields[label], location)
            yield Record(source, target, "", value, location, split=selected_split(fields, data, split, location))


def parse_label(data: ClassifyData, label: str, location: str) -> str:
    """A label, several labels or a number in a file, as the target of a record."""

    def clean(label: str) -> str:
        return (label.split(data.label_prefix_until)[0] if data.label_prefix_until else label).strip()

    return TARGETS[data.problem_type].parse(label, clean, data.label_separator, location)


# ── splits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(
    data: ClassifyData, split: str, base_dir: Path | None = None, reader: type[Reader] = TextTable
) -> Iterator[Record]:
    """Every sample of a split in the order of its file: its input is the source, its label the target."""
    return (record for record in read_all(data, split, base_dir, reader) if not record.left_out)


def read_all(
    data: ClassifyData, split: str, base_dir: Path | None = None, reader: type[Reader] = TextTable
) -> Iterator[Record]:
    """Every sample of a split, and of train also those that are left out because of held-out ones."""
    if own_file(data, split):
        yield from reader.records(data, split, base_dir)
        return
    find_split = _in_train
    if any(fractions(data)):
        files = reader.files(reader.locate(data, "train", base_dir)).values()
        versions = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
        find_split = _split_finder(data, base_dir, reader, versions)
    for record in reader.records(data, split, base_dir):
        assigned = record.split or find_split(record.group)
        if assigned == split:
            yield record
        elif assigned == LEFT_OUT and split == "train":
            yield record._replace(left_out=LEFT_OUT)


def _in_train(group: str) -> str:
    return "train"


@lru_cache(maxsize=1)  # all splits of a file follow from reading it once
def _split_finder(
    data: ClassifyData, base_dir: Path | None, reader: type[Reader], versions: object
) -> Callable[[str], str]:
    """The function from a group to its split, for these versions of the files."""
    held_out = fractions(data)

    def choose(groups: Set[str] | None = None) -> Callable[[str], str]:
        if not data.stratify or data.problem_type != "single_label" or not any(held_out):
            return partial(split_of, validation=held_out[0], test=held_out[1])
        labelled = _with_labels(reader.records(data, "train", base_dir), data, set())
        left = (record for record in labelled if not record.split)
        pairs = ((record.group, record.target) for record in left if groups is None or record.group in groups)
        return stratified_split(pairs, *held_out).split_of

    if data.split_by == CONTAINING and any(held_out):
        return assign_splits((record.group for record in reader.records(data, "train", base_dir)), choose)
    return choose()


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_labels(records: Iterable[Record], data: ClassifyData, labels: set[str]) -> Iterator[Record]:
    """The records that have a label; their labels are added to `labels`, and too many different ones are an error."""
    labels_of = TARGETS[data.problem_type].labels_of
    for record in records:
        labels.update(labels_of(record.target))
        if len(labels) > MAX_LABELS:
            raise UserError(
                f"{record.location}: over {MAX_LABELS:,} different labels so far; is data.label the right column?"
            )
        if record.target:
            yield record


def learn_labels(data: ClassifyData, base_dir: Path | None = None, reader: type[Reader] = TextTable) -> tuple[str, ...]:
    """Every label of the training file in alphabetical order, also one that only a held-out split has."""
    labels: set[str] = set()
    for _ in _with_labels(reader.records(data, "train", base_dir), data, labels):
        pass
    path = reader.locate(data, "train", base_dir)
    if len(labels) < 2:
        only = f"the one label {labels.pop()!r}" if labels else "no label"
        raise UserError(f"{path}: has {only}; classification needs two")
    if len(labels) > MAX_DECIMAL_LABELS and all(map(DECIMAL.fullmatch, labels)):
        raise UserError(
            f"{path}: the labels are {len(labels)} different numbers such as {min(labels)}: give data.problem_type = "
            "'regression' to learn their values, or write them as words if they are but names"
        )
    return tuple(sorted(labels))


def learn_scale(
    data: ClassifyData, base_dir: Path | None = None, reader: type[Reader] = TextTable
) -> tuple[float, float]:
    """The mean of the training split's numbers, and the power of two nearest their standard deviation."""
    records = validated(read(data, "train", base_dir, reader), RegressionTargets())
    values = np.array([float(record.target) for record in records if record.target])
    if not len(values) or values.std() == 0:
        only = f"the one value {values[0]:g}" if len(values) else "no number"
        raise UserError(f"{reader.locate(data, 'train', base_dir)}: has {only} for a label; regression needs two")
    return float(values.mean()), 2.0 ** round(float(np.log2(values.std())))
