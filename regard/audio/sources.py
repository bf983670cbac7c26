"""Recordings by name, and the tables, folders and archives that list them.

speech/a.flac        a file
speech.zip/a.flac    a file in an archive

clips.tsv            a table: .tsv, .csv or .jsonl with a column of paths, relative to its folder or to data.recordings
digits/              a folder or a .zip, in which a recording's fields are
  seven/a.wav          label: the folder that it is in
  seven/a.txt          text: the file of the same name, or its line in a *.trans.txt ("a SEVEN") of the same folder
  7_anna_3.wav         those of data.file_name = "{label}_{speaker}_{index}"
"""

import io
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from regard.audio.read import Header, is_audio_file, list_recordings, read_audio, read_header
from regard.config.options import RecordingOptions
from regard.data.archives import archived, is_archive, members
from regard.data.cache import content_hash, hash_together
from regard.data.columns import NoColumn
from regard.data.files import find, hash_files, rows
from regard.data.small_files import read_bytes
from regard.data.splits.hashed import file_of
from regard.errors import UserError

FIELD = re.compile(r"\{(\w+)\}")

TRANSCRIPTS = "*.trans.txt"  # a line for each recording of a folder: its name and its text. Panayotov et al. 2015
MAX_TRANSCRIPT = 1 << 26  # bytes of such a file


class Listed(NamedTuple):
    """A recording as it is listed: its name, what else is known about it, and where."""

    name: str
    fields: Mapping[str, str]
    location: str


# ── one recording ────────────────────────────────────────────────────────────────────────────────────────────────────


def exists(name: str) -> bool:
    """Whether a name is that of a file."""
    file = archived(name)
    return file.exists() if file else Path(name).is_file()


def read_recording(name: str, rate: int) -> np.ndarray:
    """The samples of a recording at this rate."""
    return read_audio(_opened(name), rate, name)


def recording_header(name: str) -> Header:
    """The rate, channels and length of a recording."""
    return read_header(_opened(name), name)


def _opened(name: str) -> Any:
    file = archived(name)
    return io.BytesIO(file.read()) if file else name


# ── lists of recordings ──────────────────────────────────────────────────────────────────────────────────────────────


def locate(data: RecordingOptions, split: str, base_dir: Path | None) -> Path:
    """The table, folder or archive of a split."""
    return file_of(data, split, base_dir, folders_allowed=True)


def list_split(
    data: RecordingOptions,
    split: str,
    base_dir: Path | None,
    required: Mapping[str, str],
    json_types: Mapping[str, tuple[type, ...]] = MappingProxyType({}),
) -> Iterator[Listed]:
    """Every recording of the table, folder or archive of a split. `required` are columns by their options."""
    path = locate(data, split, base_dir)
    parse = _name_parser(data.file_name)
    required = {option: column for option, column in required.items() if column}
    if path.is_dir() or is_archive(path):
        yield from _list_collection(path, parse, required)
        return
    audio = data.audio or "audio"
    named = FIELD.findall(data.file_name)
    columns = {option: column for option, column in required.items() if column not in named}
    json_types = {column: types for column, types in json_types.items() if column not in named}
    folder = _folder(data, path, base_dir)
    for fields, location in rows(path, data.columns, {"data.audio": audio, **columns}, json_types):
        name = fields[audio].strip()
        yield Listed(str(folder / name) if name else "", fields | (parse(name) if name else {}), location)


def _folder(data: RecordingOptions, table: Path, base_dir: Path | None) -> Path:
    return find(data.recordings, base_dir, folders_allowed=True) if data.recordings else table.parent


def hashes(data: RecordingOptions, split: str, base_dir: Path | None) -> dict[str, str]:
    """The hashes of all that a split is read from: the table, and its recordings or their archive."""
    path = locate(data, split, base_dir)
    known = hash_files(path)
    if path.is_dir() or is_archive(path):
        return known
    folder = _folder(data, path, base_dir)
    if is_archive(folder):
        return known | {folder.name: content_hash(folder)}
    named = {listed.name: Path(listed.name) for listed in list_split(data, split, base_dir, {})}
    return known | {"recordings": hash_together({name: file for name, file in named.items() if file.is_file()})}


def content_group(name: str) -> str:
    """Equal for recordings with equal content, whatever their names."""
    if file := archived(name):
        return file.checksum() if file.exists() else name
    return content_hash(Path(name)) if Path(name).is_file() else name


# ── folders and archives ─────────────────────────────────────────────────────────────────────────────────────────────


def _list_collection(path: Path, parse: "NameParser", required: Mapping[str, str]) -> Iterator[Listed]:
    """The recordings of a folder or of an archive."""
    names = [file.relative_to(path).as_posix() for file in list_recordings(path)] if path.is_dir() else members(path)
    recordings = [name for name in names if is_audio_file(Path(name))]
    if not recordings:
        raise UserError(f"{path}: no recordings (.wav, .flac, .ogg or .mp3)")
    for name in recordings:
        full_name = f"{path}/{name}"
        folder = name.partition("/")[0] if "/" in name else ""
        fields = {"audio": full_name, "label": folder, **parse(name)}
        if "text" in required.values() and "text" not in fields:
            fields["text"] = _transcript(path, PurePosixPath(name))
        if missing := {option: column for option, column in required.items() if column not in fields}:
            raise NoColumn(full_name, missing, [*fields, "text"])
        yield Listed(full_name, fields, full_name)


def _transcript(path: Path, name: PurePosixPath) -> str:
    """The text of a recording; empty if it has none, so that it is counted."""
    transcript = f"{path}/{name.with_suffix('.txt')}"
    if exists(transcript):
        return " ".join(_read_text(transcript).split())
    return _folder_transcripts(path, str(name.parent)).get(name.stem, "")


@lru_cache(maxsize=1)  # names are in order, so folder by folder
def _folder_transcripts(path: Path, folder: str) -> dict[str, str]:
    if path.is_dir():
        files = [str(file) for file in sorted((path / folder).glob(TRANSCRIPTS))]
    else:
        files = [f"{path}/{name}" for name in members(path) if PurePosixPath(name).match(TRANSCRIPTS)]
        files = [file for file in files if str(PurePosixPath(file).parent) == str(PurePosixPath(str(path)) / folder)]
    lines = (line.strip().partition(" ") for file in files for line in _read_text(file).splitlines())
    return {name: text.strip() for name, _, text in lines}


def _read_text(name: str) -> str:
    file = archived(name)
    try:
        return (file.read() if file else read_bytes(Path(name), MAX_TRANSCRIPT)).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: not readable as UTF-8 text ({error})") from None


class NameParser:
    """The fields in the name of a file, without its suffix; a name that does not match is an error."""

    def __init__(self, pattern: str):
        self.pattern = pattern
        pieces = FIELD.split(pattern)  # literal, field, literal, …
        names = pieces[1::2]
        if len(set(names)) < len(names) or not all(map(str.isidentifier, names)):
            raise UserError(f"data.file_name = '{pattern}': expected different names in braces")
        groups = [f"(?P<{piece}>[^/]+?)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)]
        self.expression = re.compile("".join(groups))

    def __call__(self, name: str) -> dict[str, str]:
        path = PurePosixPath(name).with_suffix("")
        match = self.expression.fullmatch(str(path) if "/" in self.pattern else path.name)
        if self.pattern and not match:
            raise UserError(f"{name}: does not match data.file_name = '{self.pattern}'")
        return match.groupdict() if match else {}


@lru_cache(maxsize=8)
def _name_parser(pattern: str) -> NameParser:
    return NameParser(pattern)
