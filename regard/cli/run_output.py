"""`regard run --file IN --output OUT`: the rows of a file, each with its prediction in further columns."""

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from regard.cli.output import to_json, to_jsonable
from regard.data.files import expand, find, is_text, lines, separator_of, suffix
from regard.errors import UserError
from regard.tasks.predictor import EmptyPrediction, Prediction, RunInput

PREDICTION = "prediction"
FORMATS = (".csv", ".tsv", ".jsonl")


class RowWriter:
    """Writes rows with all their columns; predictions are further ones, of which a table has the numbers only."""

    def __init__(self, file: TextIO, kind: str, separator: str = ",") -> None:
        self.file = file
        self.kind = kind
        self.count = 0
        self.table = csv.writer(file, delimiter=separator) if kind == ".csv" else None
        self.columns: list[str] = []
        self.blank: list[RunInput] = []  # rows before the first prediction, which decides on the columns

    def write(self, value: RunInput, prediction: Prediction) -> None:
        if not value.row:
            raise UserError(
                f"{value.location}: --output keeps the rows of .csv, .tsv, .jsonl and .txt files; for other formats "
                "print JSON lines: --json > FILE"
            )
        added = prediction_columns(prediction)
        if clashes := [name for name in value.row if name in added]:
            raise UserError(f"{value.location}: the file has a column '{clashes[0]}' already: rename it")
        if not all(is_text(cell) for cell in value.row.values() if isinstance(cell, str)):
            raise UserError(f"{value.location}: a field has an unpaired surrogate, which cannot be written as UTF-8")
        self.count += 1
        if self.kind == ".jsonl":
            self.file.write(to_json({**value.row, **added}, indent=None) + "\n")
        elif not self.columns and isinstance(prediction, EmptyPrediction):
            self.blank.append(value)
        else:
            if not self.columns:
                self.start_table(value, added)
            self._write_fields(value, added)

    def start_table(self, value: RunInput, added: Mapping[str, object]) -> None:
        """Write the header and the rows before the first prediction."""
        numeric = [name for name, field in added.items() if type(field) in (int, float)]
        self.columns = [*value.row, PREDICTION, *numeric]
        self._write_line(self.columns, value.location)
        for row in self.blank:
            self._write_fields(row, {})

    def _write_fields(self, value: RunInput, added: Mapping[str, object]) -> None:
        if other := [name for name in value.row if name not in self.columns]:
            raise UserError(f"{value.location}: '{other[0]}' is not a column of the first row: write a .jsonl file")
        fields = {**value.row, **added}
        if self.kind == ".tsv":
            fields[PREDICTION] = " ".join(str(fields.get(PREDICTION, "")).split())
        self._write_line([_cell(fields.get(name, "")) for name in self.columns], value.location)

    def _write_line(self, cells: list[str], location: str) -> None:
        if self.table:
            self.table.writerow(cells)
            return
        if any(character in cell for cell in cells for character in "\t\n\r"):
            raise UserError(f"{location}: a field has a tab or a line break, which .tsv cannot hold: write a .csv file")
        self.file.write("\t".join(cells) + "\n")


def prediction_columns(prediction: Prediction) -> dict[str, object]:
    """`prediction`: its text; `prediction_score` and the like: its other fields."""
    fields = to_jsonable(prediction)
    others = {f"{PREDICTION}_{name}": value for name, value in fields.items() if name != "text"}
    return {PREDICTION: prediction.text, **others}


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@contextmanager
def row_writer(path: Path, source: str = "") -> Iterator[RowWriter]:
    """A writer to the file, which appears when all rows are written; a CSV has the separator of the source."""
    if path.suffix not in FORMATS:
        raise UserError(f"--output {path}: unknown format '{path.suffix}'; expected one of: {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            files = expand(find(source)).values() if suffix(Path(source)) == ".csv" else ()
            separator = next((separator_of(next(lines(each))) for each in files), ",")
            writer = RowWriter(file, path.suffix, separator)
            yield writer
            if writer.blank and not writer.columns:  # a table without any prediction
                writer.start_table(writer.blank[0], {})
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
