"""What a run leaves behind and what can be done with it: the best checkpoint, answers, scores, traces, copies."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calling import Call

import regard
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.metrics import bleu as scores
from regard.model import Model
from regard.tasks.translate.dataset import Sample
from regard.tasks.translate.evaluate import evaluate
from regard.tasks.translate.predict import Translation
from regard.training import checkpoint
from regard.training.build import start
from regard.training.run_folder import check_environment, start_run

RECIPE = """
task = "translate"
[data]
generate = "reverse"
train = 211
validation = 13
test = 19
max_length = 60
[tokenizer]
kind = "words"
vocab_size = 60
{tokenizer}
[model]
{model}
[train]
batch_size = 13
max_steps = {steps}
eval_steps = 3
save_steps = 2
warmup_steps = 2
learning_rate = 3e-3
"""
SMALL = 'family = "transformer"\nwidth = 12\nheads = 3\ndepth = 2\nfeedforward = 17'
RNN = 'family = "seq2seq"\nembedding = 11\nwidth = 14'
CONFIGS = {  # [model], [tokenizer]
    "tied": (SMALL, ""),
    "marian": (f'{SMALL}\npositions = "sinusoid_halves"', ""),
    "pre-norm, untied, learned": (f'{SMALL}\nnorm = "pre"\ntied = "none"\npositions = "learned"\nlimit = 61', ""),
    "two vocabularies": (f'{SMALL}\ntied = "output"', "joint = false"),
    "additive": (RNN, ""),
    "lstm": (f'{RNN}\ncell = "lstm"\ndepth = 2\ntied = "output"', "joint = false"),
    "luong": (f'{RNN}\norder = "luong"\ninput_feeding = true\nscore = "bilinear"\nbidirectional = false', ""),
    "no attention": (f'{RNN}\ninform = "first"', ""),
}
TEXTS = ["1 2 3", "44 17 5 5 9 30 21", "8", "", "50 49 48 47 46"]


def train(folder: Path, config: str = "tied", steps: int = 6, *overrides: str) -> Path:
    """A run of a few steps: its outputs do not matter, only that they stay the same."""
    model, tokenizer = CONFIGS[config]
    recipe, run = folder / "mine.toml", folder / "run"
    recipe.write_text(RECIPE.format(model=model, tokenizer=tokenizer, steps=steps))
    start(load_recipe(recipe, [f"output={run}", *overrides]), quiet=True)
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained"))


def test_the_best_and_the_newest_stay_and_load_takes_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    planned = iter([3.0, 5.0, 5.0, 1.0])
    quick = scores.quick
    monkeypatch.setattr(scores, "quick", lambda *texts: quick(*texts) | {"bleu": next(planned)})
    run = train(tmp_path, "tied", 12, "train.keep=2")
    assert checkpoint.steps(run) == [6, 10, 12]
    assert json.loads((run / "best.json").read_text()) == {"step": 6, "score": 5.0}
    model = regard.load(run)
    assert model.folder == run / "checkpoint-6"
    assert model.recipe is not None
    assert model.recipe.train.keep == 2
    newest = regard.load(run / "checkpoint-12")
    assert not torch.equal(model.network.output.bias, newest.network.output.bias)
    code, out, _ = call("inspect", run, "--json")
    assert (code, json.loads(out)["folder"]) == (0, str(run / "checkpoint-6"))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_saved_copy_has_the_same_answers_embeddings_and_weights(config: str, tmp_path: Path) -> None:
    model = regard.load(train(tmp_path, config))
    model.save(tmp_path / "copy")
    copy = regard.load(tmp_path / "copy")
    assert {file.name for file in (tmp_path / "copy").iterdir()} >= {
        *("config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "README.md")
    }
    ways: list[dict[str, Any]] = [{}, {"num_beams": 3, "num_return_sequences": 2}, {"temperature": 1.3}]
    for options in ways:
        answers = model.run(TEXTS, **options)
        assert copy.run(TEXTS, **options) == answers
        assert [len(answer.alternatives) for answer in answers if answer.text] == [
            options.get("num_return_sequences", 1) - 1
        ] * sum(bool(answer.text) for answer in answers)
    assert np.array_equal(copy.embed(TEXTS), model.embed(TEXTS))
    ours, theirs = model.trace(TEXTS[1]), copy.trace(TEXTS[1])
    assert (ours.sites, ours.answer) == (theirs.sites, theirs.answer)
    for site in ours.sites:
        assert torch.equal(ours.weights(site), theirs.weights(site))
    copy.save(tmp_path / "again")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "copy" / name).read_bytes()


def test_the_model_card_has_the_training_and_convert_names_what_cannot_open_it(tmp_path: Path, call: Call) -> None:
    run = train(tmp_path, "luong")
    model = regard.load(run)
    code, out, _ = call("convert", run, tmp_path / "copy", "--json")
    assert code == 0
    assert json.loads(out)["note"].startswith("transformers cannot open this checkpoint: model_type 'regard-seq2seq'")
    assert model.folder is not None
    metrics = next(
        line["validation"]
        for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if "validation" in line and f"checkpoint-{line['step']}" == model.folder.name
    )
    for folder in (model.folder, tmp_path / "copy"):
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert card.startswith("---\nlibrary_name: regard\npipeline_tag: translation\nmetrics:\n- ")
        assert "- Trained from random initialisation\n- Training data: " in card and "## Limitations" in card
        assert all(f"{name} {value:.4g}" in card for name, value in metrics.items())


@pytest.mark.parametrize("config", ["two vocabularies", "luong", "marian"])
def test_run_generate_and_stream_agree(config: str, tmp_path: Path) -> None:
    model = regard.load(train(tmp_path, config))
    inputs = [text for text in TEXTS if text]
    answers = model.run(inputs)
    assert [model.run(text).text for text in inputs] == [answer.text for answer in answers]
    ids = model.processor.source.encode_many(inputs)
    new = model.generate(ids)
    assert [model.processor.target.decode(row) for row in new] == [answer.text for answer in answers]
    assert model.generate(ids[1]) == new[1]
    assert model.generate(torch.tensor(ids[1])) == new[1]
    assert model.generate(torch.tensor([ids[1]])) == [new[1]]
    assert all(len(row) <= 2 for row in model.generate(ids, max_new_tokens=2))
    vectors = model.embed(inputs)
    assert (vectors.dtype, vectors.shape[0]) == (np.float32, len(inputs))
    for text, vector in zip(inputs, vectors, strict=True):
        np.testing.assert_allclose(model.embed([text])[0], vector, atol=1e-5)
    trace = model.trace(inputs[1])
    assert trace.answer == answers[1].text
    for site in trace.sites:
        weights = trace.weights(site)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        torch.testing.assert_close(trace.weights(site, head=0), weights[0])
    forced = model.trace(inputs[1], target="3 2 1")
    assert forced.answer == "3 2 1"
    assert forced.weights(forced.sites[-1]).shape[-2:] == (4, 8)  # begin and three words; seven words and the end


def test_unknown_options_are_errors(trained: Path) -> None:
    model = regard.load(trained)
    with pytest.raises(
        regard.UserError, match="'num_beans' is not an option of an encoder–decoder model; did you mean 'num_beams'"
    ):
        model.run("1 2", num_beans=3)
    with pytest.raises(regard.UserError, match="cannot do task = 'classify'; possible tasks: embed, translate"):
        model.run("1 2", task="classify")
    with pytest.raises(regard.UserError, match="'flat32' is unknown; did you mean 'float32'"):
        regard.load(trained, precision="flat32")


def test_half_precision_answers_too(trained: Path) -> None:
    model = regard.load(trained, precision="bfloat16")
    assert model.network.output.weight.dtype == torch.bfloat16
    assert len(model.run(TEXTS)) == len(TEXTS)
    assert model.embed(TEXTS).dtype == np.float32


def through(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "regard", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def test_lines_in_are_lines_out(trained: Path) -> None:
    """Empty lines, Windows ends of line, separators inside a text, and no end of line at the end."""
    stdin = "\n1 2 3\r\n\n4\u20285\r6\n   \n7 8".encode()
    done = through("run", trained, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    model = regard.load(trained)
    texts = ["", "1 2 3", "", "4\u20285\r6", "   ", "7 8"]
    assert done.stdout.decode().split("\n") == [*(answer.text for answer in model.run(texts)), ""]


def test_a_line_that_is_not_utf_8_is_named(trained: Path) -> None:
    for arguments in (["run", trained], ["tokenizer", "encode", trained / "checkpoint-6"]):
        done = through(*arguments, stdin=b"1 2\n3 \xe4 4\n")
        assert done.returncode == 1
        assert b"stdin, line 2: not UTF-8" in done.stderr
        assert b"Traceback" not in done.stderr


def test_alignments_name_a_source_token_for_every_token_written(trained: Path, call: Call, tmp_path: Path) -> None:
    code, out, _ = call("run", trained, *TEXTS, "--alignments", "--json")
    assert code == 0
    model = regard.load(trained)
    rows = [json.loads(line) for line in out.splitlines()]
    for text, row in zip(TEXTS, rows, strict=True):
        if not text:  # an empty prediction
            assert row["text"] == "" and "alignment" not in row
            continue
        pairs = row["alignment"]
        source = model.processor.source.encode(text)
        assert model.processor.target.decode(row["tokens"]) == row["text"]
        assert [target for _, target in pairs] == list(range(len(row["tokens"])))
        assert all(0 <= position <= len(source) for position, _ in pairs)  # the end may be attended to, too
    code, out, _ = call("run", trained, *TEXTS, "--alignments")
    assert code == 0
    for line, row in zip(out.splitlines(), rows, strict=True):
        if not row["text"]:
            assert line == ""
            continue
        text, pairs = line.split("\t")
        assert text == row["text"]
        assert pairs == " ".join(f"{source}-{target}" for source, target in row["alignment"])
    deaf = train(tmp_path, "no attention")
    code, out, err = call("run", deaf, "1 2 3", "--alignments")
    assert (code, out) == (1, "")
    assert "no alignments" in err


def test_the_next_best_answers_are_on_separate_lines(trained: Path, call: Call) -> None:
    options = ("--num-beams", 4, "--num-return-sequences", 3)
    code, out, _ = call("run", trained, "1 2 3", "4 5", *options)
    assert code == 0
    answers = regard.load(trained).run(["1 2 3", "4 5"], num_beams=4, num_return_sequences=3)
    assert out.splitlines() == [each.text for answer in answers for each in (answer, *answer.alternatives)]
    for answer in answers:
        ranked = [answer.score, *(each.score for each in answer.alternatives)]
        assert ranked == sorted(ranked, reverse=True)
    code, _, err = call("run", trained, "1 2 3", "--num-return-sequences", 3)
    assert code == 1
    assert "num_beams" in err


def test_an_input_over_the_limit_is_an_error_or_truncated_with_a_warning(call: Call, tmp_path: Path) -> None:
    run = train(tmp_path, "pre-norm, untied, learned")
    long = " ".join(str(index % 50) for index in range(75))
    code, out, err = call("run", run, "1 2", long)
    assert (code, out) == (1, "")
    assert "75 tokens" in err
    assert "at most 60" in err
    assert "--truncate" in err
    code, out, err = call("run", run, "1 2", long, "--truncate")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert len(err.splitlines()) == 1
    assert "warning: truncated" in err
    code, out, err = call("run", run, "1 2", long, "--truncate", "--json")
    assert [json.loads(line)["truncated"] for line in out.splitlines()] == [False, True]


def test_scores_are_printed_with_their_intervals_and_signatures(trained: Path, call: Call) -> None:
    code, out, _ = call("evaluate", trained, "--json", "--num-beams", 2)
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["scores"]}
    assert {"bleu", "chrf", "exact"} <= rows.keys()
    assert "nrefs:1" in rows["bleu"]["signature"]
    assert "tok:13a" in rows["bleu"]["signature"]
    assert "nc:6" in rows["chrf"]["signature"]
    assert all(row["interval"] >= 0 for row in rows.values())
    assert rows["chrf"]["interval"] > 0
    code, out, _ = call("evaluate", trained, "--num-beams", 2)
    assert code == 0
    table = " ".join(out.split())
    for word in ("bleu", "chrf", "exact", "± 95 %", "signature"):
        assert word in table
    assert f"{rows['chrf']['value']:.4g}" in table


class Said:
    """A model with given outputs."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers

    def run(self, texts: list[str], **_: Any) -> list[Translation]:
        assert len(texts) == len(self.answers)
        return [Translation(text, 0.0) for text in self.answers]


@pytest.mark.parametrize(("spoilt", "verdict"), [(0, "no difference"), (2, "may be chance"), (40, "first is better")])
def test_a_comparison_states_its_significance(spoilt: int, verdict: str) -> None:
    """Of 60 sentences the first model has one wrong; the second has others wrong, too."""
    references = [f"the {index}th sentence has {index} words in it" for index in range(60)]
    wrong = "something else was said here instead of that"
    first = [wrong, *references[1:]]
    second = first if not spoilt else [references[0], *([wrong] * spoilt), *references[1 + spoilt :]]
    pairs = [Sample("source", reference) for reference in references]
    models: list[Any] = [Said(first), Said(second)]
    result = evaluate(models, pairs, lowercase=False).results
    assert {row["verdict"] for row in result["comparison"]} == {verdict}
    if spoilt == 40:
        result = evaluate(models[::-1], pairs, lowercase=False).results
        assert {row["verdict"] for row in result["comparison"]} == {"second is better"}


def test_two_models_are_compared_on_the_same_sentences(trained: Path, call: Call, tmp_path: Path) -> None:
    other = train(tmp_path, "additive")
    code, out, _ = call("evaluate", trained, "--compare", other, "--json")
    assert code == 0
    result = json.loads(out)
    assert {row["metric"] for row in result["comparison"]} == {"bleu", "chrf", "exact"}
    alone = json.loads(call("evaluate", other, "--json")[1])
    values = {row["name"]: row["value"] for row in result["scores"] if row["model"] == "second"}
    assert values == {row["name"]: row["value"] for row in alone["scores"]}
    code, out, _ = call("evaluate", trained, "--compare", other)
    assert code == 0
    assert "verdict" in out


def test_every_document_parses(trained: Path, call: Call) -> None:
    recipe = trained.parent / "mine.toml"
    for arguments in (["list"], ["inspect", trained], ["doctor", recipe, f"output={trained.parent / 'new'}"]):
        code, out, err = call(*arguments, "--json")
        assert (code, err) == (0, "")
        assert isinstance(json.loads(out), dict)


def test_load_gives_a_model(trained: Path) -> None:
    model = regard.load(str(trained))
    assert isinstance(model, Model)
    assert not model.network.training


def test_a_run_of_an_earlier_version_can_be_resumed(tmp_path: Path) -> None:
    """Its environment.json has the former names of keys, and those of all tasks."""
    recipe = replace(load_recipe("reverse"), output=str(tmp_path / "run"))
    run = start_run(recipe)
    check_environment(run, 1, {}, recipe)
    path = run / "environment.json"
    recorded = json.loads(path.read_text())
    options = recorded["recipe"]
    options["data.generate"] = options.pop("data.synthetic")
    options["train.average_decay"] = options.pop("train.ema_decay")
    options |= {"data.text2": "", "data.stratify": False, "data.masked": 0.15, "data.answer": ""}
    path.write_text(json.dumps(recorded))
    check_environment(run, 1, {}, recipe)
    changed = replace(recipe, data=replace(recipe.data, synthetic="dates"))
    with pytest.raises(UserError, match=r"data\.synthetic = dates, but the run started with reverse"):
        check_environment(run, 1, {}, changed)
