"""Files → records: parallel files, TSV, CSV and JSON lines; an error names file and line.

train.{de,en}.gz   one file a column, the names in the braces are the columns
dates.tsv .txt     tab-separated; the first line is a header, or `columns` names them
dates.csv          the same with commas or semicolons; a field with a separator, quote or line break is quoted
pairs.jsonl        an object a line
each also as .gz; a pattern such as 2026-*.csv is all files that match, in order, each with its own header
"""

import csv
import glob
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from regard.data.cache import Facts, hash_file, hash_together
from regard.data.columns import NoColumn
from regard.errors import UserError, listed

BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")

STARS = re.compile(r"[*?\[]")

LINE_LIMIT = 1 << 26  # bytes; a longer line is not text, and memory must stay bounded

MAX_COLUMNS = 1 << 16

MAX_VALUES = 1 << 21  # of a JSON object, and separators in a row of CSV

COLUMNS = (".tsv", ".txt", ".csv")

T = TypeVar("T")

KINDS = "parallel files such as train.{de,en}, .tsv or .txt (tab-separated), .csv, .jsonl; each also with .gz"


class Row(NamedTuple):
    """One line's fields by column, and its location, "file:line"."""

    fields: dict[str, str]
    location: str


def expand(path: Path) -> dict[str, Path]:
    """A path's files: {"de": train.de.gz, "en": train.en.gz}, {"a.txt": …, "b/c.txt": …}, or {"": path}.

    Those of a pattern are in order, by their paths below the folder where the pattern begins.
    """
    text = str(path)
    if match := BRACES.search(text):
        names = [name.strip() for name in match.group(1).split(",")]
        if len(set(names)) < len(names) or not all(names):
            raise UserError(f"{path}: the names in braces must differ and not be empty")
        return {name: Path(text[: match.start()] + name + text[match.end() :]) for name in names}
    if not several(path):
        return {"": path}
    folder = Path(*itertools.takewhile(lambda name: not STARS.search(name), path.parts))
    files = sorted(file for file in map(Path, glob.iglob(text, recursive=True)) if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def several(path: Path) -> bool:
    """Whether a path is a pattern, such as books/*.txt, and not the name of a file."""
    return bool(STARS.search(str(path))) and not BRACES.search(str(path)) and not path.is_file()


def each_of(path: Path, read: Callable[[Path], Iterator[T]]) -> Iterator[T]:
    """The items read from every file that matches a pattern, one file after another."""
    return itertools.chain.from_iterable(map(read, expand(path).values()))


def suffix(path: Path) -> str:
    """The type of a file by its name, whether it is compressed or not."""
    return Path(path.name.removesuffix(".gz")).suffix


def hash_files(path: Path) -> dict[str, str]:
    """The hash of each file of a path or pattern; files of one name, as in {de,en}/train.txt, by column and name.

    A folder has one hash, of the names and contents of all its files.
    """
    if path.is_dir():
        files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
        return {path.name: hash_together(files)}
    files = expand(path)
    if several(path):
        return {name: hash_file(file) for name, file in files.items()}
    same_names = len({file.name for file in files.values()}) < len(files)
    return {f"{column}/{file.name}" if same_names else file.name: hash_file(file) for column, file in files.items()}


def find(name: str, base_dir: Path | None = None, folders_allowed: bool = False) -> Path:
    """A file or pattern: in `base_dir` (else the working directory), then in each folder of REGARD_DATA."""
    folders = [base_dir if base_dir is not None else Path()]
    folders += [Path(folder) for folder in os.environ.get("REGARD_DATA", "").split(os.pathsep) if folder]
    if STARS.search(name):  # only in the name do they have a meaning
        folders = [Path(glob.escape(str(folder))) for folder in folders]
    candidates = list(dict.fromkeys(folder / os.path.expanduser(name) for folder in folders))
    for path in candidates:
        files = expand(path).values()
        if files and all(file.is_file() for file in files):
            return path
    folder = next(filter(Path.is_dir, candidates), None)
    if folder and folders_allowed:
        return folder
    if folder:
        suffixes = (re.search(r"\.(csv|tsv|txt|jsonl)(\.gz)?$", file.name) for file in sorted(folder.iterdir()))
        pattern = next((f"*{suffix[0]}" for suffix in suffixes if suffix), "*.csv")
        raise UserError(f"'{name}' is a folder ({folder}), expected a file or a pattern such as {Path(name) / pattern}")
    missing = [str(file) for path in candidates for file in expand(path).values() or [path] if not file.is_file()]
    problem = "matches no file" if STARS.search(name) else "not found"
    raise UserError(
        f"data file '{name}' {problem}; searched: {listed(missing)}. "
        f"Set REGARD_DATA to the folder that contains it (several folders: separated by '{os.pathsep}')"
    )


@contextmanager
def unpacked(path: Path, position: Callable[[], str]) -> Iterator[io.BufferedReader]:
    """A file's bytes, those of a .gz unpacked; an error reports how far it could be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield io.BufferedReader(file, 1 << 18)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: broken .gz after {position()} ({error}); download or compress it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def not_utf8(path: Path, line: int, column: int, byte: int) -> UserError:
    return UserError(
        f"{path}:{line}: not UTF-8 (byte 0x{byte:02x} at {column}); convert it: iconv -f latin1 -t utf-8 {path} > NEW"
    )


def json_lines(path: Path) -> Iterator[Facts | None]:
    """The object on each line of a .jsonl; None for an empty line."""
    for line_number, line in enumerate(lines(path), 1):
        if not line.strip():
            yield None
            continue
        if len(line) > MAX_VALUES and line.count(",") + line.count("[") > MAX_VALUES:
            raise UserError(f"{path}:{line_number}: over {MAX_VALUES:,} values in one line: expected an object a line")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{line_number}: not a JSON object ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}:{line_number}: expected a JSON object, found a {type(value).__name__}")
        yield value


def lines(path: Path) -> Iterator[str]:
    """Lines as UTF-8, split at \\n only (text may contain other line separators), without \\r and byte order mark."""
    line_number = 0
    with unpacked(path, lambda: f"line {line_number}") as file:
        while raw := file.readline(LINE_LIMIT):
            line_number += 1
            if len(raw) == LINE_LIMIT:
                raise UserError(f"{path}:{line_number}: line longer than {LINE_LIMIT >> 20} MB; is this a text file?")
            raw = raw.removeprefix(b"\xef\xbb\xbf") if line_number == 1 else raw
            try:
                yield raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path, line_number, error.start + 1, raw[error.start]) from None
    if line_number == 0:
        raise UserError(f"{path}: the file is empty")


def rows(
    path: Path,
    columns: tuple[str, ...] = (),
    required: Mapping[str, str] = MappingProxyType({}),
    json_types: Mapping[str, tuple[type, ...]] = MappingProxyType({}),
) -> Iterator[Row]:
    """Every line of a file or pattern as named fields. `required` columns, by their options, must exist and hold text.

    In JSON lines the columns of `json_types` may also hold values of these types, which are returned as JSON.
    """
    if several(path):
        return each_of(path, lambda file: rows(file, columns, required, json_types))
    files = expand(path)
    if "" not in files:
        _require(required, list(files), str(path))
        return _parallel(files)
    if suffix(path) in COLUMNS:
        return _separated(path, columns, required)
    if suffix(path) == ".jsonl":
        return _objects(path, required, json_types)
    raise UserError(f"{path}: unknown file type; expected {KINDS}")


def _require(required: Mapping[str, str], names: list[str], location: str, line: list[str] | None = None) -> None:
    """The required columns must be among the names; without a header, the error shows the first line."""
    if missing := {option: name for option, name in required.items() if name not in names}:
        raise NoColumn(location, missing, line or names, header=line is None)


def _parallel(files: dict[str, Path]) -> Iterator[Row]:
    counts = dict.fromkeys(files, 0)
    streams = [lines(path) for path in files.values()]
    first_file = str(next(iter(files.values())))
    for line_number, texts in enumerate(itertools.zip_longest(*streams), 1):
        for name, text in zip(files, texts, strict=True):
            counts[name] += text is not None
        if None in texts:
            continue  # one side has ended: count the others to the end for the message
        yield Row(dict(zip(files, texts, strict=True)), f"{first_file}:{line_number}")
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{path} has {counts[name]} lines" for name, path in files.items())
        raise UserError(f"{lengths}; parallel files need the same number of lines, one sample per line")


def _separated(path: Path, columns: tuple[str, ...], required: Mapping[str, str]) -> Iterator[Row]:
    stream = _comma_separated(path) if suffix(path) == ".csv" else _tab_separated(path)
    first = next(stream)
    values = first[1]
    needed = set(required.values())
    named = needed & set(values) if not columns else bool(needed) and needed <= set(values)
    header = tuple(values) == columns or bool(named)  # also if `columns` are those of another file
    names = values if header else list(columns) or [str(index) for index, _ in enumerate(values, 1)]
    _require(required, names, f"{path}:1", None if header or columns else values)
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{path}:1: several columns are named '{repeated[0]}': rename all but one")
    line_number = 1
    for line_number, line in stream if header else itertools.chain([first], stream):
        fields = line if any(map(str.strip, line)) else [""] * len(names)  # blank: a sample without text, counted so
        if len(fields) != len(names):
            raise UserError(
                f"{path}:{line_number}: {len(fields)} fields, but {len(names)} columns ({listed(names)}); "
                "put exactly one separator between fields and none inside a field"
            )
        yield Row(dict(zip(names, fields, strict=True)), f"{path}:{line_number}")
    if header and line_number == 1:
        raise UserError(f"{path}: has a header but no rows")


def too_wide(path: Path, line: int) -> UserError:
    return UserError(f"{path}:{line}: over {MAX_COLUMNS:,} columns; is this a table?")


def _tab_separated(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line_number, line in enumerate(lines(path), 1):
        if line.count("\t") >= MAX_COLUMNS:
            raise too_wide(path, line_number)
        yield line_number, line.split("\t")


def separator_of(line: str) -> str:
    """What separates the fields of a CSV, by its first line."""
    return ";" if ";" in line and "," not in line else ","


def _comma_separated(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line number and the fields of each row of a CSV (RFC 4180); of a row of several lines, that of the first.

    If the first line has semicolons and no comma, as spreadsheets of many countries write it, they are the separator.
    """
    csv.field_size_limit(LINE_LIMIT)
    stream = lines(path)
    first = next(stream)
    separator = separator_of(first)
    separators = 0  # in this row so far, those inside of quotes too

    def bounded() -> Iterator[str]:
        nonlocal separators
        for line_number, line in enumerate(itertools.chain([first], stream), 1):
            separators += line.count(separator)
            if separators >= MAX_VALUES:
                raise too_wide(path, line_number)
            yield f"{line}\n"

    reader = csv.reader(bounded(), delimiter=separator, strict=True)
    first_line = 1
    try:
        for fields in reader:
            if len(fields) > MAX_COLUMNS:
                raise too_wide(path, first_line)
            yield first_line, fields or [""]
            separators = 0
            first_line = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise UserError(f"{path}:{first_line}: a quote that opens in this row is never closed") from None
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


def _objects(path: Path, required: Mapping[str, str], json_types: Mapping[str, tuple[type, ...]]) -> Iterator[Row]:
    first_seen: dict[str, tuple[str, str]] = {}  # whether a column of `json_types` holds text or numbers, and where
    for line_number, held in enumerate(json_lines(path), 1):
        location = f"{path}:{line_number}"
        values = dict.fromkeys(required.values(), "") if held is None else held
        _require(required, list(values), location)
        for name, types in json_types.items():
            value = values[name]
            if value is None:  # a sample without it, counted so
                values[name] = ""
            elif value not in ("", []):
                kind = "text" if isinstance(value, str | list) else "numbers"
                first_kind, first_location = first_seen.setdefault(name, (kind, location))
                if kind != first_kind:  # mixed types are probably a mistake
                    raise UserError(
                        f"{location}: '{name}' = {json.dumps(value):.40}: {kind}, but {first_kind} at "
                        f"{first_location}: use one type in the whole file"
                    )
            if type(values[name]) in types:
                values[name] = json.dumps(value)
        for name in required.values():
            if not isinstance(values[name], str):
                raise UserError(f"{location}: '{name}': expected a string, found a {type(values[name]).__name__}")
            if not is_text(values[name]):
                raise UserError(f"{location}: not valid text: an unpaired surrogate (\\ud800 to \\udfff)")
        yield Row({name: field for name, field in values.items() if isinstance(field, str)}, location)


def is_text(value: object) -> bool:
    """Whether it is a string that can be encoded: an unpaired surrogate cannot."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


class Record(NamedTuple):
    """A sample as read: `prefix` is not yet part of the source; equal `group`s are in the same split."""

    source: str
    target: str
    prefix: str
    group: str
    location: str
    left_out: str = ""  # why it is not used, if its split alone forbids it
    split: str = ""  # the held-out split that selects it by the values of its columns

    @property
    def token(self) -> str:
        """The prefix as the first token of the source."""
        return f"<{self.prefix}>" if self.prefix else ""
