"""`regard run --file IN --output OUT`: the user's columns and rows stay, and predictions are added."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from calling import Call, written

import regard
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier
from tests.test_model import folder

CSV = 'id,text,note\n7,"hello, quotes",a\n8,"the\nspaces",\n9,,c\n'
TEXTS = ["hello, quotes", "the\nspaces"]


def classifier(tmp_path: Path) -> Path:
    return folder(tmp_path, lambda body: Classifier(body, ["x", "y", "z"]))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_a_table_keeps_its_columns_and_gains_predictions(tmp_path: Path, call: Call) -> None:
    model, source, target = classifier(tmp_path), written(tmp_path / "in.csv", CSV), tmp_path / "out.csv"
    code, out, err = call("run", model, "--file", source, "--output", target, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"written": str(target), "rows": 3}
    before, after = table(source), table(target)
    assert list(after[0]) == ["id", "text", "note", "prediction", "prediction_score"]
    assert [{name: row[name] for name in before[0]} for row in after] == before
    expected: Any = regard.load(model).run(TEXTS)
    assert [row["prediction"] for row in after] == [*(answer.label for answer in expected), ""]
    assert [float(row["prediction_score"]) for row in after[:2]] == pytest.approx([each.score for each in expected])
    assert after[2]["prediction_score"] == ""
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out.csv"]


def test_semicolons_stay_and_unknown_words_are_counted(tmp_path: Path, call: Call) -> None:
    source = written(tmp_path / "in.csv", "id;text\n7;hello Ω, the\n8;the § ¶\n9;\n")
    code, _, err = call("run", classifier(tmp_path), "--file", source, "--output", tmp_path / "out.csv", "-q")
    assert code == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "id;text;prediction;prediction_score"
    assert f"read as [UNK]: 3, the first is 'Ω' in {source}:2" in err


def test_json_lines_keep_every_value(tmp_path: Path, call: Call) -> None:
    rows = [{"text": "hello", "n": 1, "tags": ["a"], "none": None}, {"text": "", "n": 2}, {"text": "the", "n": 3.5}]
    source = written(tmp_path / "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    target = tmp_path / "out.jsonl"
    assert call("run", classifier(tmp_path), "--file", source, "-o", target, "-q") == (0, "", "")
    found = [json.loads(line) for line in target.read_text().splitlines()]
    for row, line in zip(rows, found, strict=True):
        assert {name: line[name] for name in row} == row
    assert found[0]["prediction"] in ("x", "y", "z") and set(found[0]["prediction_scores"]) == {"x", "y", "z"}
    assert found[1]["prediction"] == ""


def test_lines_and_other_formats(tmp_path: Path, call: Call) -> None:
    model = classifier(tmp_path)
    lines = written(tmp_path / "in.txt", "\nhello\nthe\n")
    assert call("run", model, "--file", lines, "-o", tmp_path / "out.tsv")[0] == 0
    after = table(tmp_path / "out.tsv")
    assert [row["text"] for row in after] == ["", "hello", "the"]
    assert after[0]["prediction"] == "" and after[1]["prediction"] in ("x", "y", "z")
    blank = written(tmp_path / "blank.csv", "id,text\n1,\n")
    assert call("run", model, "--file", blank, "-o", tmp_path / "blank-out.csv")[0] == 0
    assert table(tmp_path / "blank-out.csv") == [{"id": "1", "text": "", "prediction": ""}]


def test_questions_get_their_spans(tmp_path: Path, call: Call) -> None:
    model = folder(tmp_path, SpanClassifier)
    source = written(tmp_path / "in.csv", "question,context\nthe,a quote and the spaces\n")
    assert call("run", model, "--file", source, "-o", tmp_path / "out.csv")[0] == 0
    (row,) = table(tmp_path / "out.csv")
    assert row["context"][int(row["prediction_start"]) : int(row["prediction_end"])] == row["prediction"]


def test_what_cannot_be_written_is_an_error_and_leaves_no_file(tmp_path: Path, call: Call) -> None:
    model = classifier(tmp_path)
    source = written(tmp_path / "in.csv", CSV)

    def refused(said: str, *arguments: object) -> None:
        code, out, err = call("run", model, *arguments)
        assert code and out == "" and said in err and "Traceback" not in err
        assert not list(tmp_path.glob("*out*"))

    refused("expected one of: .csv, .tsv, .jsonl", "--file", source, "-o", tmp_path / "out.xlsx")
    refused("there is no folder", "--file", source, "-o", tmp_path / "none" / "out.csv")
    refused("give --file too", "hello", "-o", tmp_path / "out.csv")
    refused("which .tsv cannot hold", "--file", source, "-o", tmp_path / "out.tsv")
    taken = written(tmp_path / "taken.csv", "text,prediction\nhello,x\n")
    refused("taken.csv:2: the file has a column 'prediction' already", "--file", taken, "-o", tmp_path / "out.csv")
    mixed = written(tmp_path / "mixed.jsonl", '{"text": "hello"}\n{"text": "the", "more": 1}\n')
    refused("'more' is not a column of the first row", "--file", mixed, "-o", tmp_path / "out.csv")


def test_fields_with_a_carriage_return_can_be_read_again(tmp_path: Path, call: Call) -> None:
    model = classifier(tmp_path)
    source = written(tmp_path / "in.jsonl", json.dumps({"text": "hello\rthe", "none": None}) + "\n")
    assert call("run", model, "--file", source, "-o", tmp_path / "out.csv", "-q")[0] == 0
    assert [(row["text"], row["none"]) for row in table(tmp_path / "out.csv")] == [("hello\rthe", "")]
    code, _, err = call("run", model, "--file", source, "-o", tmp_path / "out.tsv", "-q")
    assert code == 1 and "in.jsonl:1: a field has a tab or a line break" in err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("id,id,text\n1,2,hello\n", "in.csv:1: several columns are named 'id': rename all but one"),
        ('{"text": "hello", "other": "\\ud800"}\n', "in.jsonl:1: a field has an unpaired surrogate"),
    ],
)
def test_what_cannot_be_saved_is_an_error(tmp_path: Path, call: Call, source: str, message: str) -> None:
    path = written(tmp_path / ("in.csv" if source.startswith("id") else "in.jsonl"), source)
    code, _, err = call("run", classifier(tmp_path), "--file", path, "-o", tmp_path / "out.jsonl")
    assert code == 1 and message in " ".join(err.split())
    assert not (tmp_path / "out.jsonl").exists()


def test_the_input_is_not_overwritten(tmp_path: Path, call: Call) -> None:
    source = written(tmp_path / "in.csv", CSV)
    code, _, err = call("run", classifier(tmp_path), "--file", source, "-o", source)
    assert code == 2 and "is the input file" in err
    assert source.read_text() == CSV
