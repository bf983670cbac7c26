"""Texts found by what they mean, vectors kept for the next query, and embeddings scored on pairs."""

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Call, written
from needs import need

import regard
from regard.errors import UserError
from regard.tasks.embed.evaluate import evaluate, read_pairs
from regard.tasks.embed.predict import EmbedPredictor
from regard.tasks.embed.search import BAND, Index, Source, find_all
from tests.interop.test_real_encoders import sentences
from tests.test_model import folder

LINES = ["the spaces and quotes", "", "a", "hello, naive quotes!", "and the", "  ", "spaces"]
KEPT = [(number, text) for number, text in enumerate(LINES, 1) if text.strip()]


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return regard.load(folder(tmp_path))


def test_the_best_are_those_of_the_largest_cosine(model: Any, tmp_path: Path) -> None:
    source = Source.of(str(written(tmp_path / "notes.txt", "\n".join(LINES) + "\n")))
    queries = ["naive quotes", "the"]
    found = find_all(model, source, Index.of(model, source), queries, top=3)
    vectors = model.embed([text for _, text in KEPT], normalise=True)
    for query, each in zip(queries, found, strict=True):
        cosines = vectors @ model.embed(query, normalise=True)
        best = np.argsort(-cosines)[:3]
        assert [(hit.line, hit.text) for hit in each.hits] == [KEPT[number] for number in best]
        assert np.allclose([hit.score for hit in each.hits], cosines[best], atol=1e-6)
    everything = find_all(model, source, Index.of(model, source), ["a"], top=99)
    assert len(everything[0].hits) == len(KEPT)


def test_tables_and_several_files_have_locations(model: Any, tmp_path: Path) -> None:
    written(tmp_path / "a.tsv", "id\twords\n1\thello\n2\tspaces and\n")
    written(tmp_path / "b.csv", 'words,id\n"the, a",7\n"and\nthe",8\n')
    written(tmp_path / "c.jsonl", "".join(json.dumps({"words": text, "n": 3}) + "\n" for text in ("quotes", "hello")))
    packed = gzip.compress(b"id\twords\n1\tquotes\n")
    (tmp_path / "d.tsv.gz").write_bytes(packed)
    expected = {"a.tsv": [2, 3], "b.csv": [2, 3], "c.jsonl": [1, 2], "d.tsv.gz": [2]}
    for name, lines in expected.items():
        source = Source.of(str(tmp_path / name), "words")
        (found,) = find_all(model, source, Index.of(model, source), ["hello"], top=9)
        assert sorted(hit.line for hit in found.hits) == lines
    for name in ("one", "two"):
        written(tmp_path / f"{name}.md", f"the {name}\n\nhello\n")
    several = Source.of(str(tmp_path / "*.md"))
    (found,) = find_all(model, several, Index.of(model, several), ["hello"], top=2)
    assert {(Path(hit.file).name, hit.line) for hit in found.hits} == {("one.md", 3), ("two.md", 3)}
    (tmp_path / "notes/deep").mkdir(parents=True)
    written(tmp_path / "notes/deep/three.txt", "hello\n")
    written(tmp_path / "notes/.hidden.txt", "hello\n")
    written(tmp_path / "notes/image.png", "hello\n")
    assert Source.of(str(tmp_path / "notes")).files == [tmp_path / "notes/deep/three.txt"]
    with pytest.raises(UserError, match=r"a\.tsv:1: no column 'wrds'.*words"):
        list(Source.of(str(tmp_path / "a.tsv"), "wrds").entries())
    with pytest.raises(UserError, match="--column words"):
        Source.of(str(tmp_path / "one.md"), "words")


def test_vectors_are_computed_once_for_a_file_and_a_model(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "notes.txt", "\n".join(LINES))
    source, made = Source.of(str(path)), []
    embed = EmbedPredictor.embed

    def count(predictor: Any, rows: Any, *rest: Any, **options: Any) -> Any:
        made.append(len(rows))
        return embed(predictor, rows, *rest, **options)

    monkeypatch.setattr(EmbedPredictor, "embed", count)
    first = Index.of(model, source)
    assert isinstance(first.vectors, np.memmap) and np.allclose(np.linalg.norm(first.vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(Index.of(model, source).vectors, first.vectors)
    assert made == [len(KEPT)]
    written(path, "\n".join([*LINES, "hello"]))
    assert len(Index.of(model, source).vectors) == len(KEPT) + 1
    (model.folder / "modules.json").write_text("[]")
    Index.of(model, source)
    assert made == [len(KEPT), len(KEPT) + 1, len(KEPT) + 1]


def test_a_long_file_is_compared_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(1)
    index = object.__new__(Index)
    index.vectors = chance.normal(size=(47, 5)).astype(np.float32)  # type: ignore[assignment]
    queries = chance.normal(size=(3, 5)).astype(np.float32)
    expected = np.argsort(-(queries @ index.vectors.T), axis=1)[:, :11]
    for band in (BAND, 7, 1):
        monkeypatch.setattr("regard.tasks.embed.search.BAND", band)
        numbers, scores = index.nearest(queries, 11)
        assert np.array_equal(numbers, expected)
        assert np.allclose(scores, np.take_along_axis(queries @ index.vectors.T, expected, 1), atol=1e-6)


def test_long_texts_are_errors_with_their_location_or_truncated(model: Any, tmp_path: Path) -> None:
    source = Source.of(str(written(tmp_path / "notes.txt", "a\n" + "the " * 40)))
    with pytest.raises(UserError, match=r"notes\.txt:2: longer than the model's context of 29 tokens.*--truncate"):
        Index.of(model, source)
    assert Index.of(model, source, truncate=True).facts["truncated"] == 1
    with pytest.raises(UserError, match="no text"):
        Index.of(model, Source.of(str(written(tmp_path / "empty.txt", "\n \n"))))


def test_search_on_the_command_line(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    place, notes = folder(tmp_path), written(tmp_path / "notes.txt", "\n".join(LINES))
    code, out, err = call("search", place, notes, "hello, naive quotes!", "--top", 2)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"1.000  {notes}:4  hello, naive quotes!" and len(out.splitlines()) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n\nspaces\n"))
    code, out, _ = call("search", place, notes, "--json", "--top", 1)
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["query"], each["hits"][0]["line"]) for each in found] == [("a", 3), ("spaces", 7)]
    code, out, _ = call("search", place, notes, "a", "and the", "--top", 1)
    assert out.splitlines()[0] == "a" and out.splitlines()[1].startswith("  1.000") and "notes.txt:5  and the" in out


def test_an_unknown_column_and_an_empty_query_are_errors(tmp_path: Path, call: Call) -> None:
    place, table = folder(tmp_path), written(tmp_path / "t.csv", 'id,words\n1,"hello\nthe"\n')
    code, out, err = call("search", place, table, "hello")
    assert (code, out) == (1, "") and "t.csv:1: no column 'text'; line 1 is: id, words; " in err
    assert "choose one with --column NAME" in err and "if line 1 is already a sample, give a column number" in err
    assert call("search", place, table, "hello", "--column", "words")[1].endswith("  hello the\n")
    assert len(call("search", place, table, "hello", "--column", 2)[1].splitlines()) == 2
    code, out, err = call("search", place, table, "hello", " ", "--column", "words")
    assert (code, out) == (1, "") and "QUERY 2 is empty" in err


def test_vectors_to_a_file_and_a_folder_without_model_type(tmp_path: Path, call: Call) -> None:
    place, target = folder(tmp_path), tmp_path / "vectors.npy"
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "model_type"}))
    code, _, err = call("run", place, "a", "--task", "embed")
    assert code == 1 and "--model-type" in err
    code, out, _ = call("run", place, "a", "the", "--vectors", target, "--model-type", "bert", "--json")
    assert code == 0 and json.loads(out)["texts"] == 2
    assert np.array_equal(np.load(target), regard.load(place, model_type="bert").embed(["a", "the"]))
    assert call("inspect", place, "--model-type", "bert", "--quiet")[0] == 0
    code, _, err = call("run", place, "a", "--vectors", target, "--model-type", "bert", "--temperature", "1")
    assert code == 1 and "--temperature" in err


PAIRS = [("a", "a", 5.0), ("the", "spaces", 1.0), ("naive quotes", "quotes", 3.5), ("and", "hello", 0.0)]


def test_pairs_in_every_form_give_the_same_scores(model: Any, tmp_path: Path) -> None:
    tabs = "".join(f"{score}\t{one}\t{other}\n" for one, other, score in PAIRS)
    forms = {
        "bare.tsv": (tabs, ("score", "sentence1", "sentence2"), ("", "", "")),
        "theirs.tsv": ("score\tsentence1\tsentence2\n" + tabs, (), ("", "", "")),
        "ours.tsv": ("label\ttext\ttext2\n" + tabs, (), ("", "", "")),
        "other.tsv": ("how\tone\ttwo\n" + tabs, (), ("one", "two", "how")),
        "ours.jsonl": ("".join(json.dumps(dict(zip(("text", "text2", "label"), pair, strict=True))) + "\n"
                               for pair in PAIRS), (), ("", "", "")),
    }  # fmt: skip
    found = []
    for name, (text, columns, named) in forms.items():
        pairs, skipped = read_pairs(str(written(tmp_path / name, text)), columns, named)
        assert pairs == PAIRS and not skipped
        found.append(evaluate(model, pairs))
    vectors = [model.embed([pair[side] for pair in PAIRS], normalise=True) for side in (0, 1)]
    expected = np.corrcoef((vectors[0] * vectors[1]).sum(1), [pair[2] for pair in PAIRS])[0, 1]
    assert (
        found[0][0].name == "pearsonr" and abs(found[0][0].value - 100 * expected) <= 0.1
    )  # cosines here are all nearly one
    assert all(each == found[0] for each in found)


def test_pairs_that_cannot_be_scored_are_named(model: Any, tmp_path: Path, call: Call) -> None:
    bad = written(tmp_path / "bad.tsv", "text\ttext2\tlabel\na\tb\t1\na\tb\tmuch\n")
    with pytest.raises(UserError, match=r"bad\.tsv:3: label = 'much' should be a number"):
        read_pairs(str(bad), (), ("", "", ""))
    with pytest.raises(UserError, match="needs at least two"):
        read_pairs(str(written(tmp_path / "few.tsv", "text\ttext2\tlabel\na\tb\t1\na\t\t\n")), (), ("", "", ""))
    code, _, err = call("evaluate", model.folder)
    assert code == 1 and "FILE of pairs" in err
    code, _, err = call("evaluate", model.folder, bad, "--num-beams", "2")
    assert code == 1 and "--num-beams is not an option of the evaluation of an embedding model" in err


def test_minilm_scores_sts_in_int8_too() -> None:
    """The full development split of STS-B takes half a minute; a fifth of it is enough."""
    place, _ = sentences()
    path = Path(os.environ.get("REGARD_DATA", "nowhere")) / "stsb" / "en-dev.tsv.gz"
    need(path.is_file(), "set REGARD_DATA to a folder with stsb/en-dev.tsv.gz")
    pairs, _ = read_pairs(str(path), ("score", "sentence1", "sentence2"), ("", "", ""))
    assert len(pairs) == 1500
    found = {}
    for precision in ("float32", "int8"):
        scores = evaluate(regard.load(place, precision=precision), pairs[::5])
        found[precision] = {score.name: score.value for score in scores}["spearmanr"]
    assert found["float32"] >= 82
    assert abs(found["int8"] - found["float32"]) <= 0.5
