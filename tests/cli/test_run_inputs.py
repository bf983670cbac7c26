"""`regard run --file`: rows of a file have the predictions of the same texts as arguments, each with its location."""

import gzip
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Call, written
from chatting import language_folder
from checkpoints import vocabulary

import regard
from regard.cli.options import FileOptions
from regard.cli.output import to_jsonable
from regard.cli.run_inputs import from_file
from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.interop.folder import save
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import build
from regard.tasks.registry import options_of
from tests.test_model import folder

TEXTS = ["hello, quotes", "the\nspaces", "", 'a "quote" and', "and the"]
CSV = 'n,text,more\n1,"hello, quotes",a\n2,"the\nspaces",the\n3,,\n4,"a ""quote"" and",and\n5,and the,hello\n'
PLACES = (2, 3, 5, 6, 7)


def translator(place: Path) -> Path:
    words = vocabulary(53)
    sizes = {"family": "transformer", "width": 12, "heads": 3, "depth": 1, "feedforward": 17}
    save(place / "model", build(sizes, source_vocabulary=53, target_vocabulary=53), words, {"max_new_tokens": 5})
    return place / "model"


MODELS: dict[str, Callable[[Path], Path]] = {
    "embed": folder,
    "classify": lambda place: folder(place, lambda body: Classifier(body, ["x", "y", "z"])),
    "fill": lambda place: folder(place, MaskedLM),
    "tag": lambda place: folder(place, lambda body: TokenClassifier(body, ["O", "B-X", "I-X"])),
    "generate": lambda place: language_folder(place / "model"),
    "translate": translator,
}


def told(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def same(found: Any, wanted: Any) -> bool:
    """Equal but for rounding, which batches of another size may change."""
    if isinstance(wanted, dict):
        return found.keys() - {"location"} == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted


@pytest.mark.parametrize("task", MODELS)
def test_rows_are_answered_as_texts_are(task: str, tmp_path: Path, call: Call) -> None:
    place = MODELS[task](tmp_path)
    mask = "[MASK] " if task == "fill" else ""
    table = written(tmp_path / "t.csv", CSV.replace(",and the,", f",{mask}and the,").replace('"a ""', f'"{mask}a ""'))
    if task == "fill":
        table.write_text(table.read_text().replace('"hello', '"[MASK] hello').replace('"the\n', '"[MASK] the\n'))
    model: Any = regard.load(place)
    assert model.task == task
    code, out, err = call("run", place, "--file", table, "--json", "--batch-size", 2)
    assert code == 0 and (not err or err.startswith("warning: words not in the vocabulary, read as [UNK]: 2"))
    found = told(out)
    assert [each["location"] for each in found] == [f"{table}:{line}" for line in PLACES]
    answers = [to_jsonable(answer) for answer in model.run([mask + text if text else "" for text in TEXTS])]
    assert found[2] == {"location": f"{table}:5", "text": "", "truncated": False, "alternatives": []}
    assert same(found, answers)
    code, out, _ = call("run", place, "--file", table)
    assert code == 0 and len(out.splitlines()) == len(TEXTS) and out.splitlines()[2] == ""


@pytest.mark.parametrize("task", [*MODELS, "answer"])
def test_an_empty_input_among_several_has_an_empty_prediction(task: str, tmp_path: Path, call: Call) -> None:
    """In a list, a file, stdin and several arguments alike."""
    place = folder(tmp_path, SpanClassifier) if task == "answer" else MODELS[task](tmp_path)
    model: Any = regard.load(place)
    text = {"fill": "a [MASK]", "answer": "a\tthe spaces"}.get(task, "hello")
    steps: list[int] = []
    first, second, third = model.run(["", text, ""], progress=steps.append)
    assert (first.text, first.truncated, first.alternatives, bool(first)) == ("", False, (), False)
    assert first is third and (first.label, first.score, first.entities) == (None, None, None)
    assert bool(second) and sum(steps) == 3 and model.run(["", ""]) == [first, first]
    with pytest.raises(UserError, match="input 3 "):
        model.run(["", text, 7])
    code, out, err = call("run", place, "", text, "--json")
    assert (code, err) == (0, "") and same(told(out), [to_jsonable(first), to_jsonable(second)])
    if task == "answer":
        assert [bool(each) for each in model.run([("a", " "), {"question": "", "context": "a"}, ("a", "the")])] == [
            False,
            False,
            True,
        ]
        assert [bool(each) for each in model.run(["", "a"], context="the spaces")] == [False, True]
    if task == "tag":
        assert [bool(each) for each in model.run([[], ["the"]])] == [False, True]
    if task in ("answer", "classify", "generate"):
        with pytest.raises(UserError, match="input 1 "):
            model.run("")
        assert call("run", place, "")[0] == 1


def test_questions_and_pairs_are_read_from_two_columns(tmp_path: Path, call: Call) -> None:
    place, table = folder(tmp_path / "q", SpanClassifier), written(tmp_path / "t.csv", CSV)
    model: Any = regard.load(place)
    asks = [(1, "a", "hello, quotes"), (2, "the", "the\nspaces"), (4, "and", 'a "quote" and'), (5, "hello", "and the")]
    code, out, _ = call("run", place, "--file", table, "--column", "more", "--text-pair", "text", "--json")
    answers = [to_jsonable(answer) for answer in model.run([ask[1:] for ask in asks])]
    assert code == 0 and same([each for each in told(out) if "start" in each], answers)
    text = written(tmp_path / "text.txt", "a quote and the spaces")
    code, out, _ = call("run", place, "--file", table, "--column", "more", "--context", text, "--json")
    assert code == 0 and same(told(out)[0], to_jsonable(model.run("a", context="a quote and the spaces")))
    code, _, err = call("run", place, "--file", table)
    assert code == 1 and "no column 'question' and 'context'" in err and "--column NAME and --text-pair NAME" in err
    article = {"paragraphs": [{"context": "a quote", "qas": [{"id": "1", "question": "the", "answers": []}]}]}
    squad = written(tmp_path / "squad.json", json.dumps({"data": [article]}))
    assert same(told(call("run", place, "--file", squad, "--json")[1])[0], to_jsonable(model.run(("the", "a quote"))))

    two = folder(tmp_path / "p", lambda body: Classifier(body, ["x", "y"], paired=True))
    code, out, _ = call("run", two, "--file", table, "--text-pair", "more", "--json")
    pairs = [(text, ask) for _, ask, text in asks]
    answers = [to_jsonable(answer) for answer in regard.load(two).run(pairs)]
    assert code == 0 and same([each for each in told(out) if "label" in each], answers)
    assert "no column 'text_pair'" in call("run", two, "--file", table)[2]
    one = folder(tmp_path / "s", lambda body: Classifier(body, ["x", "y"], paired=False))
    err = call("run", one, "--file", table, "--text-pair", "more")[2]
    assert "--text-pair more: a classifier takes one text at a time" in err


def test_every_file_format_has_the_same_inputs(tmp_path: Path) -> None:
    predictor: Any = regard.load(folder(tmp_path)).predictor("embed")
    texts = ["hello, quotes", "", "the"]
    files = {
        "a.tsv": "text\tn\nhello, quotes\t1\n\t2\nthe\t3\n",
        "a.txt": "text\tn\nhello, quotes\t1\n\t2\nthe\t3\n",
        "plain.txt": "hello, quotes\n\nthe\n",
        "a.jsonl": "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts),
        "only.csv": 'words\n"hello, quotes"\n""\nthe\n',
        "only.jsonl": "".join(json.dumps({"words": text}) + "\n" for text in texts),
        "p.{text,other}": "",
    }
    written(tmp_path / "p.text", files["plain.txt"])
    written(tmp_path / "p.other", "1\n2\n3\n")
    for name, content in files.items():
        if content:
            written(tmp_path / name, content)
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
        for each in (name, f"{name}.gz") if content else (name,):
            found = list(from_file(predictor, FileOptions(str(tmp_path / each)), False, quiet=True))
            assert [given.value for given in found] == texts
            assert [predictor.is_empty(given.value) for given in found] == [False, True, False]
    assert len(list(from_file(predictor, FileOptions(str(tmp_path / "a.*"), "text"), False))) == 6 * len(texts)
    numbered = written(tmp_path / "bare.csv", "7,hello\n8,the\n")
    assert [each.value for each in from_file(predictor, FileOptions(str(numbered), "2"), False)] == ["hello", "the"]


def test_columns_are_those_of_the_recipe(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path, lambda body: Classifier(body, ["x", "y"], paired=None)))
    table = written(tmp_path / "t.csv", "text,body\na\tb,hello\tthe\n")

    def inputs(file: Path, task: str = "classify", **data: Any) -> list[Any]:
        known = replace(model, recipe=Recipe(task, "", data=options_of(task).data(train="x", **data)))
        return [each.value for each in from_file(known.predictor(task), FileOptions(str(file)), False)]

    assert inputs(table) == ["a b"] and inputs(table, text="body") == ["hello the"]  # no border between two texts
    bare = written(tmp_path / "bare.tsv", "x\thello\ny\tthe\n")
    assert inputs(bare, columns=("label", "words"), text="words") == ["hello", "the"]
    assert inputs(
        written(tmp_path / "h.tsv", "words\tlabel\nhello\tx\n"), columns=("label", "words"), text="words"
    ) == ["hello"]
    with pytest.raises(UserError, match=r"t\.csv:1: no column 'subject'; .*--column NAME"):
        inputs(written(tmp_path / "t.csv", "id,words\n1,a\n"), text="subject")
    model = regard.load(translator(tmp_path / "translator"))
    assert inputs(bare, "translate") == ["x", "y"]  # as it was trained, on the first column
    prefixed = written(tmp_path / "p.tsv", "de\tto\nhallo\ten\n")
    assert inputs(prefixed, "translate", source="de", prefix="to") == ["<en> hallo"]


def test_tagged_words_stay_as_in_the_file(tmp_path: Path, call: Call) -> None:
    place = MODELS["tag"](tmp_path)
    lines = written(tmp_path / "t.conll", "a\tO\nhello,the\tO\n\nand\tO\n")
    listed = written(tmp_path / "t.jsonl", '{"tokens": ["a", "hello,the"]}\n{"tokens": ["and"]}\n')
    wanted = [to_jsonable(each) for each in regard.load(place).run([["a", "hello,the"], ["and"]])]
    for file in (lines, listed):
        assert same(told(call("run", place, "--file", file, "--json")[1]), wanted)


def test_an_input_without_a_prediction_is_named_by_its_location(tmp_path: Path, call: Call) -> None:
    place, table = folder(tmp_path, MaskedLM), written(tmp_path / "t.csv", "text\n[MASK] a\nhello\n")
    code, _, err = call("run", place, "--file", table)
    assert code == 1 and "t.csv:3: has no mask token: put [MASK] where" in err
    written(table, f"text\n[MASK] a\n[MASK] {'the ' * 40}\n")
    assert f"{table}:3: has 43 tokens" in call("run", place, "--file", table)[2]
    code, out, err = call("run", place, "--file", table, "--truncate")
    assert code == 0 and len(out.splitlines()) == 2
    assert f"warning: truncated to what the model reads: {table}:3: " in err
    code, _, err = call("run", place, "--file", table, "--temperature", 1)
    assert code == 1 and err.startswith(
        "error: --temperature is for task caption, generate, transcribe or translate; this is a masked"
    )
    err = call("run", place, "[MASK] a", "--top-k", 3)[2]
    assert err.startswith("error: --top-k is for task caption, generate, transcribe or translate; this is a masked")


def test_inputs_and_a_file_are_not_given_together(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, table = folder(tmp_path), written(Path("t.csv"), CSV)
    assert call("run", place, "a", "--file", table)[0] == 2
    assert call("run", place, "a", "--column", "text")[0] == 2
    code, out, err = call("run", place, table)
    assert code == 0 and len(out.splitlines()) == 1
    assert err == "note: t.csv is a file, but its name is taken as the input: --file reads a file\n"
    assert call("run", place, table, "--quiet")[2] == ""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{table}\n"))
    assert call("run", place)[2] == ""


def test_vectors_of_rows_are_written_completely_or_not_at_all(tmp_path: Path, call: Call) -> None:
    place, table, target = folder(tmp_path), written(tmp_path / "t.csv", CSV), tmp_path / "v.npy"
    code, out, _ = call("run", place, "--file", table, "--vectors", target, "--batch-size", 1, "--json")
    assert code == 0 and json.loads(out)["texts"] == 5
    assert np.allclose(np.load(target), regard.load(place).embed(TEXTS), atol=1e-5)
    target.unlink()
    written(table, "text\n" + "a\n" * 40 + "the " * 40 + "\n")
    code, _, err = call("run", place, "--file", table, "--vectors", target, "--batch-size", 1)
    assert code == 1 and f"{table}:42: " in err and not target.exists()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path))
    table = written(tmp_path / "t.csv", "text\n" + f"{'a' * 2000}\n" * 4000)  # 8 MB

    def read(stream: Iterator[Any]) -> None:
        while list(islice(stream, 32)):
            pass

    tracemalloc.start()
    read(from_file(model.predictor("embed"), FileOptions(str(table)), False))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
