"""Hostile and damaged input: no escape sequence reaches a terminal, no value exhausts memory, errors are messages."""

import gzip
import json
import os
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from calling import Call
from chatting import language_folder
from checkpoints import shard
from rich.console import Console

from regard.cli import run as run_command
from regard.cli.options import Output
from regard.cli.output import emit
from regard.config.options import MAX_COUNT, MAX_THREADS, MAX_VOCABULARY
from regard.data.files import MAX_COLUMNS, MAX_VALUES, rows
from regard.data.small_files import MAX_SETTINGS
from regard.errors import UserError, escape_controls
from regard.explorer.charts import heatmap
from regard.interop.generation_config import MAX_BEAMS
from regard.interop.safetensors import write_file
from regard.interop.sentence_transformers import Pooling, pooling_of, supported_pooling, write_pooling
from regard.model import load
from regard.tasks.answer.files import articles
from regard.tasks.tag import files as tag_files
from regard.tasks.tag.options import TagData
from tests.test_model import folder as encoder_folder

TITLE = "x\x1b]0;title\x07\x1b[2J\x9b1m\u202e"  # sets the title, clears the screen, colours, reverses the direction


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_folder(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A small language model, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | values))


def assert_error(result: tuple[int, str, str], message: str, code: int = 1) -> None:
    exit_code, out, err = result
    assert (exit_code, out) == (code, ""), err
    assert message in err
    assert "Traceback" not in err


# ── terminals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_safe(text: str) -> bool:
    return text == escape_controls(text)


def test_errors_and_warnings_have_no_control_characters(call: Call, model: Path, tmp_path: Path) -> None:
    change(model / "config.json", model_type=TITLE)
    (tmp_path / "a.csv").write_text(f"{TITLE},label\na,b\n")
    for arguments in (
        ("run", model, "x"),
        ("doctor", "classify", f"data.train={tmp_path / 'a.csv'}"),
        ("train", "dates", f"model.family={TITLE}"),
        ("inspect", TITLE),
    ):
        code, out, err = call(*arguments)
        assert code == 1
        assert "x␛]0;title␇␛[2J" in err and is_safe(out + err)


def test_tables_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"[/b]": {"[red]": 1, TITLE: 2}, "[bold]": {"[red]": 3, TITLE: 4}}
    emit({"[/INST]": "[/b]", "group [/b]": rows}, Output(), "[/b]")
    out, _ = capsys.readouterr()
    assert all(name in out for name in ("[/INST]", "[/b]", "group [/b]", "[red]", "[bold]"))
    assert is_safe(out)


def test_a_folder_named_like_markup_can_be_inspected(call: Call, model: Path) -> None:
    folder = model.parent / "m[/b]x"
    folder.parent.mkdir()
    code, out, _ = call("inspect", model.rename(folder))
    assert code == 0
    assert "[/b]x" in out


class Predictor:
    """A classifier whose label controls the terminal."""

    def segments(self, *_: Any) -> None:
        return None

    def notes(self, *_: Any) -> list[str]:
        return []

    def lines(self, *_: Any) -> list[str]:
        return [TITLE]


@pytest.mark.parametrize("terminal", [True, False])
def test_predictions_are_escaped_in_a_terminal_only(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr(run_command, "Console", lambda **_: Console(force_terminal=False))
    predictor: Any = Predictor()
    prediction: Any = object()
    run_command._print(predictor, run_command.RunInput("a"), prediction, Output(), {})
    out, _ = capsys.readouterr()
    assert out == (escape_controls(TITLE) if terminal else TITLE) + "\n"


def test_a_chart_is_well_formed_whatever_its_labels(tmp_path: Path) -> None:
    import xml.etree.ElementTree as ElementTree

    path = heatmap(tmp_path / "a.svg", f"{TITLE}\ud800", [TITLE], ["\0<&"], [[1.0]])
    ElementTree.parse(path)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

GENERATION = {
    "suppress_tokens": (5, "suppress_tokens = 5 should be a list of token ids"),
    "eos_token_id": (["a"], "eos_token_id: 'a' in"),
    "max_new_tokens": (2**64, f"max_new_tokens = {2**64}: must be below {MAX_COUNT}"),
    "min_new_tokens": (2**64, "min_new_tokens"),
    "num_beams": (10**6, f"num_beams = 1000000 should be an integer of at least 1 and at most {MAX_BEAMS}"),
    "num_return_sequences": (10**5, "num_return_sequences = 100000 should be an integer"),
    "repetition_penalty": (10**400, "repetition_penalty"),
}


@pytest.mark.parametrize("key", GENERATION)
def test_generation_settings_are_bounded(key: str, call: Call, model: Path) -> None:
    value, message = GENERATION[key]
    change(model / "generation_config.json", **{key: value})
    assert_error(call("run", model, "a"), message)


@pytest.mark.parametrize("penalty", [-1, -1.0, 0, 2])
def test_a_length_penalty_may_be_any_number(penalty: float, model: Path) -> None:
    answers = load(model).run(["ab", "c"], num_beams=3, length_penalty=penalty, max_new_tokens=5)
    change(model / "generation_config.json", length_penalty=penalty, num_beams=3)
    assert load(model).run(["ab", "c"], max_new_tokens=5) == answers


def test_a_recipe_cannot_set_what_its_checkpoint_could_not_be_read_with(call: Call, tmp_path: Path) -> None:
    options = (f"output={tmp_path / 'run'}", "data.train=50", "data.validation=5", f"decode.num_beams={MAX_BEAMS + 1}")
    assert_error(
        call("train", "dates", *options, "--quiet"), f"decode.num_beams = 65: a checkpoint holds at most {MAX_BEAMS}"
    )


def test_a_task_without_augmentation_says_so(call: Call) -> None:
    assert_error(call("train", "dates", "augment.flip=true"), "'augment.flip': this task has no options in [augment]")


def test_counts_are_bounded(call: Call, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("hello\n")
    assert_error(call("run", model, "a", "--threads", MAX_THREADS + 1), "--threads", code=2)
    size = MAX_VOCABULARY + 1
    train = ("tokenizer", "train", text, "-o", tmp_path / "t.json", "--vocab-size", size)
    assert_error(call(*train), "--vocab-size", code=2)
    for key, value in {"tokenizer.vocab_size": size, "train.threads": MAX_THREADS + 1, "data.train": 10**30}.items():
        assert_error(call("train", "dates", f"{key}={value}"), f"{key} = {value}")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["secret", "home/.secret", "home/.ssh/chat_template.jinja", "blobs/0"])
def test_a_link_out_of_the_folder_is_not_read(place: str, call: Call, model: Path, tmp_path: Path) -> None:
    """The content of its target would be saved with the model."""
    (tmp_path / "home").mkdir()
    model = model.rename(tmp_path / "home" / "model")
    secret = tmp_path / place
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("SECRET")
    (model / "chat_template.jinja").symlink_to(secret)
    assert_error(call("convert", model, tmp_path / "out"), f"a link to {secret}, outside of the folder")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", ["cache", "sibling", "inside", "folder"])
def test_other_links_are_read(layout: str, call: Call, model: Path, tmp_path: Path) -> None:
    """The Hugging Face cache consists of links to blobs."""
    config = model / "config.json"
    if layout == "cache":
        snapshot = tmp_path / "hub" / "snapshots" / "commit"
        blobs = tmp_path / "hub" / "blobs"
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        for index, file in enumerate(model.iterdir()):
            file.rename(blobs / str(index))
            (snapshot / file.name).symlink_to(f"../../blobs/{index}")
        model = snapshot
    elif layout == "sibling":
        config.rename(tmp_path / "shared.json")
        config.symlink_to("../shared.json")
    elif layout == "inside":
        config.rename(model / "other.json")
        config.symlink_to("other.json")
    else:
        (tmp_path / "link").symlink_to(model)
        model = tmp_path / "link"
    assert call("inspect", model)[0] == 0


def test_the_pooling_in_the_cache_is_read(encoder: Path, tmp_path: Path) -> None:
    """It is a link in a folder of the snapshot; the pooling of a model to be trained must not be lost either."""
    write_pooling(encoder, Pooling("cls", normalise=True), width=16)
    snapshot = tmp_path / "hub" / "snapshots" / "commit"
    pooling = snapshot / "1_Pooling"
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    shutil.copytree(encoder, snapshot)
    (pooling / "config.json").rename(tmp_path / "hub" / "blobs" / "7")
    (pooling / "config.json").symlink_to("../../../blobs/7")
    assert supported_pooling(snapshot) == pooling_of(snapshot) == Pooling("cls", normalise=True)
    (tmp_path / "hub" / "blobs" / "7").write_text('{"pooling_mode": "weightedmean"}')
    assert supported_pooling(snapshot) is None
    (pooling / "config.json").unlink()
    with pytest.raises(UserError, match=r"1_Pooling/config\.json: not found"):
        supported_pooling(snapshot)


def test_settings_are_small_files(call: Call, model: Path) -> None:
    path = model / "generation_config.json"
    path.write_text("{" + " " * MAX_SETTINGS + "}")
    assert_error(call("run", model, "a"), f"{path}: not JSON that can be read ([Errno 27] 16,777,218 bytes, over the")


def test_weights_have_the_permissions_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    write_file(tmp_path / "a.safetensors", {"a": torch.zeros(3)})
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_weights_are_written_where_permissions_cannot_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    write_file(tmp_path / "a.safetensors", {"a": torch.zeros(3)})
    assert (tmp_path / "a.safetensors").is_file()


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may be longer than 7,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return encoder_folder(tmp_path / "encoder")


def test_a_full_disk_is_an_error_message(
    model: Path, encoder: Path, full_disk: None, call: Call, cache: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"the spaces {index}\n" for index in range(211)))
    for arguments in (("search", encoder, lines, "a"), ("convert", model, tmp_path / "out")):
        code, _, err = call(*arguments)
        assert code == 1
        assert err.startswith("error: ") and len(err.splitlines()) == 1
        assert str(tmp_path / "out") in err or str(cache / "search") in err
    assert not [path for path in cache.rglob("*") if path.is_file()]


BOMBS = {
    "a.tsv": ("\t" * MAX_COLUMNS, "columns; is this a table?"),
    "a.csv": ("," * MAX_COLUMNS, "a.csv.gz:1: over 65,536 columns; is this a table?"),
    "wide.csv": ("text,label\n" + "," * MAX_VALUES, "wide.csv.gz:2: over 65,536 columns; is this a table?"),
    "long.csv": ('text,label\n"' + '\n","' * MAX_VALUES, "columns; is this a table?"),
    "a.jsonl": ('{"a": [' + "[]," * MAX_VALUES + "[]]}", "values in one line"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_short_file_cannot_become_a_large_table(name: str, call: Call, tmp_path: Path) -> None:
    content, message = BOMBS[name]
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(content.encode(), 1))
    assert_error(call("doctor", "classify", f"data.train={path}"), message)


def test_commas_in_a_text_are_not_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = "," * (MAX_COLUMNS + 1)
    path.write_text(f'text,label\n"{text}\n{text}",a\nb,c\n')
    assert [row.fields["text"] for row in rows(path, required={"data.text": "text"})] == [f"{text}\n{text}", "b"]


def test_a_sentence_without_an_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_files, "MAX_WORDS", 7)
    path = tmp_path / "a.conll"
    path.write_text("a O\n" * 7 + "\n" + "b O\n" * 8)
    found = tag_files.sentences(path, TagData())
    assert len(next(found).words) == 7
    with pytest.raises(UserError, match=r"a\.conll:9: over 7 words without a blank line"):
        next(found)


def test_a_context_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "LINE_LIMIT", 1 << 20)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a " * (1 << 19)))
    assert len(run_command.read_context(path)) == 1 << 20
    path.write_bytes(gzip.compress(b"a " * (1 << 20)))
    with pytest.raises(UserError, match=r"a\.txt\.gz: longer than 1 million characters"):
        run_command.read_context(path)


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_articles_are_read_whole_and_in_linear_time(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder is tried again when the text has doubled, and at the end of the file."""
    monkeypatch.setattr("regard.tasks.answer.files.CHUNK", chunk)
    expected = [{"title": "a" * length, "paragraphs": [length]} for length in (1, 101, 997, 3, 499)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"version": "x" * 3001, "data": expected}))
    assert list(articles(path)) == expected
    tries = []
    decode = json.JSONDecoder.raw_decode
    monkeypatch.setattr(json.JSONDecoder, "raw_decode", lambda *given: tries.append(1) or decode(*given))
    path.write_text('{"data": [{"a": "' + "x" * 9973)
    with pytest.raises(UserError, match="ends inside an article"):
        list(articles(path))
    assert len(tries) <= 20


# ── names and folders ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_argument_that_is_not_utf_8_is_named(call: Call, model: Path) -> None:
    name = os.fsdecode(b"b\xff.txt")
    for arguments in (("evaluate", model, name), ("train", "dates", f"output={name}"), ("run", model, "--stop", name)):
        code, _, err = call(*arguments)
        assert code == 2
        assert f"argument {len(arguments)}: " in err and "not UTF-8" in err


def test_the_home_of_nobody_is_not_found(call: Call, model: Path) -> None:
    for arguments in (("run", "~nosuch/x", "a"), ("evaluate", model, "~nosuch/x.txt")):
        assert_error(call(*arguments), "not found")


def test_a_shard_has_a_name_that_can_be_printed(call: Call, model: Path) -> None:
    shard(model, "\ud800{}.safetensors")
    assert_error(call("inspect", model), "a shard is a .safetensors file in this folder")


DEEP = "[" * 100_000


@pytest.mark.parametrize("name", ["best.json", "checkpoint-2/manifest.json", "recipe.toml"])
def test_a_deeply_nested_file_is_damaged(name: str, call: Call, tmp_path: Path) -> None:
    options = ["data.train=50", "data.validation=5", "train.max_steps=2", "train.warmup_steps=1", "--quiet"]
    run = tmp_path / "run"
    assert call("train", "dates", f"output={run}", *options)[0] == 0
    (run / name).write_text("a = " + DEEP if name.endswith(".toml") else DEEP)
    code, _, err = call("inspect", run)
    assert f"{run / name}: " in err and "Traceback" not in err
    assert code == (0 if name == "best.json" else 1)
