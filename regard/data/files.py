"""Files → records: parallel files, columns with tabs or commas between, JSON lines; an error names file and line.

train.{de,en}.gz   one file a column, the names in the braces are the columns
dates.tsv .txt     tab-separated; the first line is a header, or `columns` names them
dates.csv          the same with commas or semicolons, and quotes round what holds one, a quote (twice), a line break
pairs.jsonl        an object a line
each also as .gz; a pattern such as 2026-*.csv means all that match, in order, each with its own header
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from regard.data.columns import NoColumn
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")

STARS = re.compile(r"[*?\[]")

LINE_LIMIT = 1 << 26  # bytes; beyond it the file is hardly lines of text, and memory must stay bounded

COLUMNS = (".tsv", ".txt", ".csv")

Found = TypeVar("Found")

KINDS = "parallel files such as train.{de,en}, .tsv or .txt (tab-separated), .csv, .jsonl; each also with .gz"


class Row(NamedTuple):
    """One line's fields, by the columns' names, and where it stood."""

    fields: dict[str, str]
    place: str


def expand(path: Path) -> dict[str, Path]:
    """The files a pattern means: {"de": train.de.gz, "en": train.en.gz}, {"a.txt": …, "b/c.txt": …}, or {"": path}."""
    match = BRACES.search(str(path))
    if not match:
        return _matches(path) if several(path) else {"": path}
    names = [name.strip() for name in match.group(1).split(",")]
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"{path}: the names in braces must differ and not be empty")
    text = str(path)
    return {name: Path(text[: match.start()] + name + text[match.end() :]) for name in names}


def several(path: Path) -> bool:
    """Whether a path stands for all files that match it, such as books/*.txt; a file of that very name comes first."""
    return bool(STARS.search(str(path))) and not BRACES.search(str(path)) and not path.is_file()


def each_of(path: Path, read: Callable[[Path], Iterator[Found]]) -> Iterator[Found]:
    """What is read from every file that a pattern means, one after another."""
    return itertools.chain.from_iterable(map(read, expand(path).values()))


def _matches(path: Path) -> dict[str, Path]:
    """Every file that a pattern means, in order, by its path below the folder where the pattern begins."""
    folder = Path(*itertools.takewhile(lambda part: not STARS.search(part), path.parts))
    found = sorted(file for file in map(Path, glob.iglob(str(path), recursive=True)) if file.is_file())
    return {file.relative_to(folder).as_posix(): file for file in found}


def find(name: str, beside: Path | None = None) -> Path:
    """A file or pattern: beside the recipe (else the working directory), then in each folder of REGARD_DATA."""
    folders = [beside if beside is not None else Path()]
    folders += [Path(folder) for folder in os.environ.get("REGARD_DATA", "").split(os.pathsep) if folder]
    if STARS.search(name):  # in the name alone they mean something
        folders = [Path(glob.escape(str(folder))) for folder in folders]
    tried = list(dict.fromkeys(folder / Path(name).expanduser() for folder in folders))
    for path in tried:
        files = expand(path).values()
        if files and all(file.is_file() for file in files):
            return path
    if folder := next(filter(Path.is_dir, tried), None):
        raise UserError(
            f"'{name}' is a folder ({folder}): a pattern means its files, such as {Path(name) / _any_of(folder)}"
        )
    missing = [str(file) for path in tried for file in expand(path).values() or [path] if not file.is_file()]
    said = "matches no file" if STARS.search(name) else "not found"
    raise UserError(f"data file '{name}' {said}; looked for {', '.join(missing)}; REGARD_DATA may name more folders")


def _any_of(folder: Path) -> str:
    """A pattern for the files of a folder: by the ending of the first whose form is known."""
    kinds = re.compile(r"\.(csv|tsv|txt|jsonl)(\.gz)?$")
    return next((f"*{kind[0]}" for file in sorted(folder.iterdir()) if (kind := kinds.search(file.name))), "*.csv")


@contextmanager
def unpacked(path: Path, reached: Callable[[], str]) -> Iterator[io.BufferedReader]:
    """A file's bytes, those of a .gz unpacked; an error says how far it could be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield io.BufferedReader(file, 1 << 18)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: broken .gz after {reached()} ({error}); fetch or compress it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def not_utf8(path: Path, line: int, column: int, byte: int) -> UserError:
    return UserError(f"{path}:{line}: not UTF-8 (byte 0x{byte:02x} at {column}); convert it, e.g. with iconv -t UTF-8")


def json_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The object on each line of a .jsonl; nothing for an empty line."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            yield None
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a JSON object ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}:{number}: a {type(value).__name__}, but each line must be a JSON object")
        yield value


def lines(path: Path) -> Iterator[str]:
    """Lines as UTF-8, split at \\n alone (a text may hold other separators), without \\r and byte order mark."""
    number = 0
    with unpacked(path, lambda: f"line {number}") as file:
        while raw := file.readline(LINE_LIMIT):
            number += 1
            if len(raw) == LINE_LIMIT:
                raise UserError(f"{path}:{number}: a line of over {LINE_LIMIT >> 20} MB; is this a text file?")
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            try:
                yield raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, error.start + 1, raw[error.start]) from None
    if number == 0:
        raise UserError(f"{path}: the file is empty")


def rows(
    path: Path,
    columns: tuple[str, ...] = (),
    asked: tuple[str, ...] = (),
    values: Mapping[str, tuple[type, ...]] = MappingProxyType({}),
) -> Iterator[Row]:
    """Every line of a file or pattern as named fields; `asked` columns must be there, as text.

    In JSON lines the columns of `values` may also be of these types, which are given as JSON.
    """
    if several(path):
        return each_of(path, lambda file: rows(file, columns, asked, values))
    files = expand(path)
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if "" not in files:
        _require(asked, list(files), str(path))
        return _parallel(files)
    if suffix in COLUMNS:
        return _separated(path, columns, asked)
    if suffix == ".jsonl":
        return _objects(path, asked, values)
    raise UserError(f"{path}: cannot tell what kind of file this is; possible: {KINDS}")


def _require(asked: tuple[str, ...], names: list[str], place: str) -> None:
    if missing := [name for name in asked if name not in names]:
        raise NoColumn(place, missing, names)


def _parallel(files: dict[str, Path]) -> Iterator[Row]:
    counts = dict.fromkeys(files, 0)
    streams = [lines(path) for path in files.values()]
    shown = str(next(iter(files.values())))
    for number, texts in enumerate(itertools.zip_longest(*streams), 1):
        for name, text in zip(files, texts, strict=True):
            counts[name] += text is not None
        if None in texts:
            continue  # one side has ended: count the others to the end for the message
        yield Row(dict(zip(files, texts, strict=True)), f"{shown}:{number}")
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{path} has {counts[name]} lines" for name, path in files.items())
        raise UserError(f"{told}; parallel files need equally many, line by line the same sample")


def _separated(path: Path, columns: tuple[str, ...], asked: tuple[str, ...]) -> Iterator[Row]:
    stream = _commas(path) if path.name.removesuffix(".gz").endswith(".csv") else _tabs(path)
    line = next(stream)
    first = line[1]
    named = set(asked) & set(first) if not columns else bool(asked) and set(asked) <= set(first)
    header = tuple(first) == columns or bool(named)  # also where `columns` are those of another file
    names = first if header else list(columns) or [str(index) for index, _ in enumerate(first, 1)]
    if not header and not columns and not set(asked) <= set(names):
        raise NoColumn(f"{path}:1", [name for name in asked if name not in names], first, header=False)
    _require(asked, names, f"{path}:1")
    for number, given in stream if header else itertools.chain([line], stream):
        fields = given if any(map(str.strip, given)) else [""] * len(names)  # blank: a sample without text, counted so
        if len(fields) != len(names):
            raise UserError(
                f"{path}:{number}: {len(fields)} fields, but {len(names)} columns ({', '.join(names)}); "
                "one separator must stand between fields and none inside"
            )
        yield Row(dict(zip(names, fields, strict=True)), f"{path}:{number}")


def _tabs(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line, with its number; quotes mean nothing."""
    for number, line in enumerate(lines(path), 1):
        yield number, line.split("\t")


def _commas(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The same of CSV (RFC 4180), whose quoted fields may go on over several lines: the number is that of the first.

    Where the first line has semicolons and no comma, as spreadsheets of many countries write it, they stand between.
    """
    csv.field_size_limit(LINE_LIMIT)
    first, *_ = head = list(itertools.islice(text := lines(path), 1))
    between = ";" if ";" in first and "," not in first else ","
    reader = csv.reader((f"{line}\n" for line in itertools.chain(head, text)), delimiter=between, strict=True)
    begun = 1
    try:
        for fields in reader:
            yield begun, fields or [""]
            begun = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


def _objects(path: Path, asked: tuple[str, ...], values: Mapping[str, tuple[type, ...]]) -> Iterator[Row]:
    written: dict[str, tuple[bool, str]] = {}  # whether a column of `values` holds text, and where that was seen first
    for number, held in enumerate(json_lines(path), 1):
        place, value = f"{path}:{number}", dict.fromkeys(asked, "") if held is None else held
        _require(asked, list(value), place)
        value |= {name: "" for name in values if value[name] is None}  # a sample without it, counted so
        for name in values:
            if value[name] not in ("", []):
                told = (isinstance(value[name], str | list), place)
                _require_like(name, value[name], told, written.setdefault(name, told))
        value |= {name: json.dumps(value[name]) for name, kinds in values.items() if type(value[name]) in kinds}
        for name in asked:
            if not isinstance(value[name], str):
                raise UserError(f"{place}: '{name}' is a {type(value[name]).__name__}, but must be a string")
        fields = {name: field for name, field in value.items() if isinstance(field, str)}
        if not all(is_text(fields[name]) for name in asked):
            raise UserError(f"{place}: half a surrogate pair (\\ud800 to \\udfff) is not text")
        yield Row(fields, place)


def _require_like(name: str, value: object, now: tuple[bool, str], first: tuple[bool, str]) -> None:
    """Refuse numbers among texts, and texts among numbers: one of both is surely a mistake."""
    if now[0] != first[0]:
        words = ("numbers", "text")
        raise UserError(
            f"{now[1]}: '{name}' is {json.dumps(value):.40}, {words[now[0]]}, but {words[first[0]]} at {first[1]}: "
            "write all of them the same way"
        )


def is_text(value: object) -> bool:
    """Whether it is text that can be written: half a surrogate pair cannot."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


class Record(NamedTuple):
    """A sample as read: `prefix` is not yet part of the source; equal `group`s lie in the same part."""

    source: str
    target: str
    prefix: str
    group: str
    place: str
    left_out: str = ""  # why it is not used, where its part alone forbids it

    @property
    def token(self) -> str:
        """The prefix as it stands at the head of the source."""
        return f"<{self.prefix}>" if self.prefix else ""


def _asked(data: "DataOptions") -> list[str]:
    """The columns that the options name: source, target, prefix, and what parts are split by."""
    return [data.source, data.target, data.prefix, *({data.split_by} - {"source", "target"})]


def unnamed_header(path: Path, data: "DataOptions") -> bool:
    """Whether a first line with names would be taken as a sample, because nothing asks for a name."""
    separated = "" in expand(path) and path.name.removesuffix(".gz").endswith(COLUMNS)
    return separated and not data.columns and not any(_asked(data))


def records(path: Path, data: "DataOptions") -> Iterator[Record]:
    """A file's rows with the roles the options give the columns; by default the first is source, the next target."""
    asked = _asked(data)
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        asked[:2] = data.source or "source", data.target or "target"
    stream = rows(path, data.columns, tuple(name for name in asked if name))
    source, target = asked[:2]
    for fields, place in stream:
        if not (source and target):
            source, target = _default_sides(source, target, data.prefix, list(fields), place)
        text, answer = fields[source], fields[target]
        group = {"source": text, "target": answer}.get(data.split_by)
        prefix = fields[data.prefix] if data.prefix else ""
        yield Record(text, answer, prefix, fields[data.split_by] if group is None else group, place)


def _default_sides(source: str, target: str, prefix: str, names: list[str], place: str) -> tuple[str, str]:
    free = iter([name for name in names if name not in (source, target, prefix)])
    try:
        return source or next(free), target or next(free)
    except StopIteration:
        raise UserError(f"{place}: needs a source and a target, but has only: {', '.join(names)}") from None
