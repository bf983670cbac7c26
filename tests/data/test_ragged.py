"""Prepared datasets: what is written comes back, from disk as from memory; every option is part of the cache key."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config.options import DataOptions, DocumentOptions
from regard.data import ragged
from regard.data.cache import Report, cache_path, options_key
from regard.data.ragged import TEXT, DatasetWriter, Layout, RaggedDataset, in_memory
from regard.tasks.answer.options import AnswerData
from regard.tasks.classify import texts as labelled
from regard.tasks.classify.options import ClassifyData
from regard.tasks.fill import sentences
from regard.tasks.fill.options import FillData
from regard.tasks.tag.options import TagData
from regard.tasks.translate.options import TranslateData

LAYOUTS = {"words": TEXT, "tokens": Layout("uint16"), "windows": Layout("int32", 3), "vectors": Layout("float32", 2)}
WORDS = ["", "Zoë", "日本", "a b"]
TOKENS = [[5, 65535, 1], [], [7], []]


def write(writer: DatasetWriter) -> None:
    writer.report.read = writer.report.kept = 4
    writer.hashes = {"a.txt": "00"}
    writer.facts["bytes"] = 17
    writer["words"].extend_texts(WORDS)
    writer["tokens"].extend(TOKENS[:1])
    writer["tokens"].extend(TOKENS[1:])
    writer["windows"].extend([(1, 2, -3)])
    writer["vectors"].extend_array(np.array([[0.5, 1.5], [2.5, -1.0]]))


def rows_of(dataset: RaggedDataset) -> Mapping[str, list[Any]]:
    columns = dataset.columns
    tables = {name: [column[index].tolist() for index in range(len(column))] for name, column in columns.items()}
    return tables | {"words": [columns["words"].text(index) for index in range(len(WORDS))]}


def test_rows_come_back_from_disk_and_from_memory(tmp_path: Path) -> None:
    stored = ragged.prepare(tmp_path / "set", LAYOUTS, write, RaggedDataset, Report())
    live = in_memory(LAYOUTS, write, RaggedDataset, Report())
    wanted = {"words": WORDS, "tokens": TOKENS, "windows": [[1, 2, -3]], "vectors": [[0.5, 1.5], [2.5, -1.0]]}
    assert rows_of(stored) == rows_of(live) == wanted
    assert isinstance(stored.columns["tokens"].values, np.memmap)
    assert (stored.report, stored.hashes, stored.facts["bytes"]) == (Report(4, 4), {"a.txt": "00"}, 17)
    assert live.report == stored.report
    again = ragged.prepare(
        tmp_path / "set", LAYOUTS, lambda writer: pytest.fail("it is there"), RaggedDataset, Report()
    )
    assert rows_of(again) == wanted


def test_a_column_without_values_is_no_damage(tmp_path: Path) -> None:
    for _ in range(2):
        empty = ragged.prepare(
            tmp_path / "set", LAYOUTS, lambda writer: writer["tokens"].extend([[]]), RaggedDataset, Report()
        )
        assert [len(empty.columns[name]) for name in LAYOUTS] == [0, 1, 0, 0]
        assert empty.columns["tokens"][0].tolist() == []


@pytest.mark.parametrize("name", ["words.values", "tokens.offsets", "windows.values", "vectors.values", "dataset.json"])
@pytest.mark.parametrize("left", [0, 0.5, 1])
def test_a_truncated_file_is_written_again(tmp_path: Path, name: str, left: float) -> None:
    ragged.prepare(tmp_path / "set", LAYOUTS, write, RaggedDataset, Report())
    file = tmp_path / "set" / name
    content = file.read_bytes()
    file.write_bytes(content[: int(left * (len(content) - 1))])
    again = ragged.prepare(tmp_path / "set", LAYOUTS, write, RaggedDataset, Report())
    assert rows_of(again)["tokens"] == TOKENS and file.read_bytes() == content


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

FILES = ("train", "validation", "test")


TABLES = (DataOptions, DocumentOptions, AnswerData, ClassifyData, FillData, TagData, TranslateData)


@pytest.mark.parametrize(
    ("table", "name"), [(table, each.name) for table in TABLES for each in fields(table) if each.name not in FILES]
)
def test_every_option_is_part_of_the_key(table: type[DataOptions], name: str) -> None:
    options = table(train="a.tsv")
    other = copy(options)
    object.__setattr__(other, name, "another value")
    assert options_key(other, "train") != options_key(options, "train")
    assert options_key(other, "train", [name]) == options_key(options, "train", [name])


def test_what_is_left_out_of_a_key_is_an_option() -> None:
    for table, names in ((FillData, sentences.UNPREPARED), (ClassifyData, labelled.UNPREPARED)):
        assert {*names} < {each.name for each in fields(table)}


def test_splits_are_part_of_the_key_and_names_of_files_are_not() -> None:
    held_out = DataOptions(train="a.tsv", validation=0.1, test=0.2)
    keys = {options_key(held_out, split) for split in FILES}
    keys |= {options_key(replace(held_out, validation=0.2), "train"), options_key(replace(held_out, test=0.1), "train")}
    assert len(keys) == 5
    moved = DataOptions(train="elsewhere/a.tsv", validation="v.tsv")
    assert options_key(moved, "train") == options_key(DataOptions(train="a.tsv", validation="w.tsv"), "train")
    made = DataOptions(train=10, validation=3, synthetic="dates")
    assert options_key(replace(made, validation=4), "train") == options_key(made, "train")
    assert options_key(replace(made, train=11), "train") != options_key(made, "train")


def test_an_option_added_later_changes_the_key() -> None:
    @dataclass(frozen=True)
    class Later(DataOptions):
        lowercase: bool = False

    assert options_key(Later(train="a.tsv"), "train") != options_key(Later(train="a.tsv", lowercase=True), "train")


def test_contents_are_not_confused(tmp_path: Path) -> None:
    assert cache_path(tmp_path, ["ab", "c"]) != cache_path(tmp_path, ["a", "bc"])
    assert cache_path(tmp_path, ["a"]) == cache_path(tmp_path, ["a"])
