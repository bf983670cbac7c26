"""Recordings in tables, folders and archives: the same names, labels and transcripts, and errors that name the file."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from regard.audio.sources import Listed, NameParser, content_group, exists, hashes, list_split, read_recording
from regard.config.options import RecordingOptions
from regard.errors import UserError

RATE = 8_000
CLIPS = {"seven/1_anna.wav": "SEVEN", "seven/2_ben.flac": "SEVEN AGAIN", "one/1_ben.wav": "ONE"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Recordings in a folder per class, with transcripts of both kinds, the same in an archive, and tables."""
    clips = tmp_path / "clips"
    rows = []
    for index, (name, text) in enumerate(CLIPS.items()):
        path = clips / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.full(99, index / 10), RATE)
        rows.append({"audio": name, "text": text, "label": path.parent.name})
    (clips / "seven" / "1_anna.txt").write_text("SEVEN\n")
    (clips / "seven" / "a.trans.txt").write_text("2_ben SEVEN AGAIN\n")
    (clips / "one" / "b.trans.txt").write_text("1_ben ONE\n")
    with zipfile.ZipFile(tmp_path / "clips.zip", "w") as archive:
        for path in sorted(clips.rglob("*.*")):
            archive.write(path, path.relative_to(clips).as_posix())
    for suffix, separator in ((".tsv", "\t"), (".csv", ",")):
        lines = [separator.join(row.values()) for row in rows]
        (tmp_path / f"clips{suffix}").write_text("\n".join([separator.join(rows[0]), *lines]) + "\n")
    (tmp_path / "clips.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def listed(folder: Path, *columns: str, **options: Any) -> list[Listed]:
    return list(list_split(RecordingOptions(**options), "train", folder, {f"data.{name}": name for name in columns}))


SOURCES: dict[str, dict[str, Any]] = {
    "folder": dict(train="clips"),
    "archive": dict(train="clips.zip"),
    "tsv": dict(train="clips.tsv", recordings="clips"),
    "csv": dict(train="clips.csv", recordings="clips.zip"),
    "jsonl": dict(train="clips.jsonl", recordings="clips"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_all_sources_list_the_same(name: str, corpus: Path) -> None:
    found = listed(corpus, "label", "text", **SOURCES[name])
    assert len(found) == len(CLIPS)
    for entry in found:
        clip = next(clip for clip in CLIPS if entry.name.endswith(f"/{clip}"))
        assert entry.fields["text"] == CLIPS[clip] and entry.fields["label"] == clip.split("/")[0]
        assert exists(entry.name)
        value = list(CLIPS).index(clip) / 10
        assert np.abs(read_recording(entry.name, RATE) - value).max() <= 2**-15


def test_paths_of_a_table_are_relative_to_its_folder(corpus: Path) -> None:
    (corpus / "clips" / "inner.tsv").write_text("audio\ttext\nseven/1_anna.wav\tSEVEN\n")
    (entry,) = listed(corpus, "text", train="clips/inner.tsv")
    assert exists(entry.name) and entry.location.endswith("inner.tsv:2")


def test_names_of_files_have_fields(corpus: Path) -> None:
    for source in SOURCES.values():
        found = listed(corpus, "speaker", **source, file_name="{index}_{speaker}")
        speakers = sorted((entry.fields["index"], entry.fields["speaker"]) for entry in found)
        assert speakers == [("1", "anna"), ("1", "ben"), ("2", "ben")]
    parse = NameParser("{word}/{index}_{speaker}")
    assert parse("seven/1_anna.wav") == {"word": "seven", "index": "1", "speaker": "anna"}
    assert NameParser("")("any.wav") == {}


@pytest.mark.parametrize(
    ("options", "columns", "problem"),
    [
        (dict(train="clips", file_name="{index}-{speaker}"), ("speaker",), "does not match data.file_name"),
        (dict(train="clips", file_name="{a}_{a}"), (), "different names"),
        (dict(train="clips"), ("speaker",), "no column 'speaker'"),
        (dict(train="clips.tsv", audio="file"), (), "no column 'file'"),
        (dict(train="clips.tsv", recordings="missing"), (), "not found"),
        (dict(train="empty"), (), "no recordings"),
        (dict(train="missing.zip"), (), "not found"),
        (dict(train="broken.zip"), (), r"not a readable \.zip"),
    ],
)
def test_wrong_sources_are_errors(options: dict, columns: tuple[str, ...], problem: str, corpus: Path) -> None:
    (corpus / "empty").mkdir()
    (corpus / "broken.zip").write_bytes(b"PK\3\4 broken")
    with pytest.raises(UserError, match=problem):
        listed(corpus, *columns, **options)


def test_a_transcript_that_is_no_text_is_an_error(corpus: Path) -> None:
    (corpus / "clips" / "one" / "1_ben.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"1_ben\.txt.*UTF-8"):
        listed(corpus, "text", train="clips")


def test_a_recording_without_transcript_has_an_empty_one(corpus: Path) -> None:
    (corpus / "clips" / "one" / "b.trans.txt").unlink()
    texts = {Path(entry.name).name: entry.fields["text"] for entry in listed(corpus, "text", train="clips")}
    assert texts["1_ben.wav"] == "" and texts["1_anna.wav"] == "SEVEN"


def test_hashes_change_with_the_recordings(corpus: Path) -> None:
    for index, source in enumerate(SOURCES.values()):
        options = RecordingOptions(**source)
        before = hashes(options, "train", corpus)
        assert before == hashes(options, "train", corpus)
        if ".zip" not in str(source):
            soundfile.write(corpus / "clips/one/1_ben.wav", np.full(99, index / 9), RATE)
            assert before != hashes(options, "train", corpus)


def test_equal_content_is_one_group(corpus: Path) -> None:
    soundfile.write(corpus / "a.wav", np.zeros(50), RATE)
    soundfile.write(corpus / "b.wav", np.zeros(50), RATE)
    with zipfile.ZipFile(corpus / "more.zip", "w") as archive:
        for name in ("a.wav", "b.wav"):
            archive.write(corpus / name, name)
    for prefix in (f"{corpus}", f"{corpus}/more.zip"):
        assert content_group(f"{prefix}/a.wav") == content_group(f"{prefix}/b.wav")
    assert content_group(f"{corpus}/a.wav") != content_group(f"{corpus}/clips/one/1_ben.wav")
