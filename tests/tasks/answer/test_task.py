"""Questions answered from texts: a tiny encoder learns it, is asked, scored, stopped and refused."""

import json
import random
import re
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.config.recipe import Recipe, load_recipe
from regard.errors import UserError
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.token import SpanClassifier
from regard.tasks.answer.files import Question
from regard.tasks.answer.spans import score_windows
from regard.tasks.answer.task import Answer
from regard.tasks.answer.windows import collate, live_windows
from regard.tasks.registry import build
from regard.text.sentences import sentence_around
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine
from tests.test_model import folder

NAMES = ("Ada", "Bob", "Cleo", "Dora", "Emil", "Finn")
YEARS = ("1811", "1822", "1833", "1844", "1855", "1866")
FILLER: list[str] = ["the", "wind", "blew", "over", "green", "hills", "and", "many", "small", "birds", "sang", "there"]
SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 64\nheads = 2\nlimit = 48\ndropout = 0.0'


def told(chance: random.Random, words: int = 14) -> tuple[str, str, str]:
    """A text with one name and one year in it."""
    found = chance.choices(FILLER, k=words)
    name, year = chance.choice(NAMES), chance.choice(YEARS)
    first, second = sorted(chance.sample(range(1, words), 2))
    found[first], found[second] = chance.sample((name, year), 2)
    return " ".join(found) + ".", name, year


def lay_out(place: Path, texts: int = 60, silent: bool = False) -> Path:
    """Paragraphs of a file: who, when and, if `silent`, unanswerable questions."""
    chance = random.Random(7)
    with (place / "asked.jsonl").open("w", encoding="utf-8") as file:
        for number in range(texts):
            text, name, year = told(chance)
            asks = [("Who was there?", name), ("When was it?", year), *([("How much?", "")] if silent else [])]
            asked = [{"question": ask, "answers": [{"text": said}] if said else []} for ask, said in asks]
            file.write(json.dumps({"title": f"t{number % 10}", "context": text, "qas": asked}) + "\n")
    return place


def recipe(place: Path, model: str = SCRATCH, steps: int = 3, *overrides: str) -> Recipe:
    (place / "answer.toml").write_text(f"""
task = "answer"
output = "{place / "run"}"
[data]
train = "asked.jsonl"
validation = 0.2
[tokenizer]
vocab_size = 120
lowercase = true
[model]
{model}
[train]
batch_size = 16
max_steps = {steps}
learning_rate = 2e-3
warmup_steps = 5
eval_steps = 1000
save_steps = {steps}
threads = 1
""")
    return load_recipe(place / "answer.toml", overrides)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned whom and when, and that "how much" has no answer."""
    place = lay_out(tmp_path_factory.mktemp("answering"), 100, silent=True)
    start(recipe(place, SCRATCH, 140), quiet=True)
    return place


@pytest.fixture
def model(learnt: Path) -> Any:
    return regard.load(learnt / "run")


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_learns_and_its_folder_is_a_published_one(learnt: Path, model: Any) -> None:
    best = json.loads((learnt / "run/best.json").read_text())
    assert best["score"] > 90  # F1
    config = json.loads((model.folder / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"] and "has_pooler" not in config
    assert 'model.run({"question": "…", "context": "…"})' in (model.folder / "README.md").read_text()
    again = regard.load(model.folder)  # without the run's recipe
    assert model.task == "answer" and type(again.network) is SpanClassifier
    lines = [json.loads(line) for line in (learnt / "run/metrics.jsonl").read_text().splitlines()]
    assert {"loss", "exact_match", "f1"} <= next(line for line in lines if "validation" in line)["validation"].keys()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_mean_of_the_start_and_end_cross_entropies(smoothing: float, tmp_path: Path) -> None:
    """Label smoothing spreads probability over the possible answer positions only."""
    options = recipe(lay_out(tmp_path, 8), SCRATCH, 3, f"train.label_smoothing={smoothing}")
    loaded = prepare_network(options)
    task: Any = build(options, loaded.processor, loaded.network)
    batch = next(task.batches(0, 0, 1))
    logits: Any = loaded.network(batch.text).detach()
    total = 0.0
    for row in range(len(batch.first)):
        begin, end = batch.context[row].tolist()
        places = [0, *range(begin, end)]
        for side, wanted in ((0, int(batch.first[row])), (1, int(batch.last[row]))):
            chances = logits[row, places, side].log_softmax(0)
            total -= float((1 - smoothing) * chances[places.index(wanted)] + smoothing * chances.mean()) / 2
    assert task.num_targets(batch) == len(batch.first)
    loss = task.loss(loaded.network, batch)
    loss.backward()
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert all(torch.isfinite(each.grad).all() for each in loaded.network.parameters() if each.grad is not None)


def test_validation_of_single_windows_equals_that_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = recipe(lay_out(tmp_path, 20), SCRATCH, 3, "data.max_length=24", "data.stride=6")
    loaded = prepare_network(options)
    task: Any = build(options, loaded.processor, loaded.network)
    assert len(task.validation) > task.validation.questions  # several windows a text
    together = task.validate(loaded.network.eval())
    monkeypatch.setattr("regard.tasks.batching.MAX_TOKENS_CPU", 1)
    assert task.validate(loaded.network) == pytest.approx(together, rel=1e-5)


def test_an_interrupted_run_has_the_same_weights(tmp_path: Path) -> None:
    place = lay_out(tmp_path, 20)
    rest = ("train.save_steps=2", "train.dropout=0.1", "train.schedule=constant")
    start(recipe(place, SCRATCH, 6, *rest, f"output={tmp_path / 'whole'}"), quiet=True)
    start(recipe(place, SCRATCH, 4, *rest), quiet=True)
    resume(place / "run", True, ["train.max_steps=6"])
    one, two = (load_file(run / "checkpoint-6/training.safetensors") for run in (tmp_path / "whole", place / "run"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_body_with_other_heads_loads_without_its_pooler(tmp_path: Path) -> None:
    place = folder(tmp_path, MaskedLM, pooler=True)
    options = recipe(lay_out(tmp_path, 8), f'from = "{place}"', 3)
    loaded = prepare_network(options)
    network: Any = loaded.network
    assert type(network) is SpanClassifier and network.body.pooler is None
    task: Any = build(options, loaded.processor, network)
    task.loss(network, next(task.batches(0, 0, 1))).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_an_adapter_is_written_and_added_again(tmp_path: Path) -> None:
    place = folder(tmp_path, MaskedLM)
    start(recipe(lay_out(tmp_path, 20), f'from = "{place}"\nlora_rank = 2', 3), quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert type(model.network) is SpanClassifier and (model.folder / "adapter_config.json").is_file()
    base: Any = regard.load(place)
    changed = model.network.body.encoder.blocks[0].self_attention.query.weight
    assert not torch.equal(changed, base.network.body.encoder.blocks[0].self_attention.query.weight)


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def long_text(words: int = 400) -> str:
    """Filler with a name at one position and a year at another, some newlines and characters of several bytes."""
    found = random.Random(3).choices(FILLER, k=words)
    found[150], found[333], found[10], found[200] = "Cleo", "1844", "wind\n\n", "“birds”"
    return " ".join(found) + "."


def test_windows_find_answers_far_into_the_passage(model: Any) -> None:
    text = long_text()
    answers = model.run([("Who was there?", text), {"question": "When was it?", "context": text}])
    assert [answer.text for answer in answers] == ["Cleo", "1844"]
    for answer in answers:
        assert text[answer.start : answer.end] == answer.text and 0 < answer.score <= 1
    one = model.run({"question": "Who was there?", "context": text})
    assert one == model.run(("Who was there?", text)) == model.run(f"Who was there?\t{text}".replace("\n", " "))
    assert one == model.run("Who was there?", context=text) and one == answers[0]
    assert model.run(["Who was there?", "When was it?"], context=text, batch_size=3) == answers


def test_a_question_alone_is_answered_as_among_others(model: Any) -> None:
    chance = random.Random(5)
    asks = [("Who was there?", told(chance, words)[0]) for words in (5, 30, 9, 60)]
    for ask, answer in zip(asks, model.run(asks, batch_size=2), strict=True):
        alone = model.run(ask)
        assert (alone.text, alone.start) == (answer.text, answer.start)
        assert alone.score == pytest.approx(answer.score, abs=1e-4)


def test_the_next_best_answers_do_not_overlap(model: Any) -> None:
    text = "Ada sang there and many birds sang over green hills and there Bob sang."
    answer = model.run(("Who was there?", text), best=4)
    places = [(each.start, each.end) for each in (answer, *answer.alternatives)]
    assert answer.text in NAMES and len(places) == 4
    assert all(each.text == text[each.start : each.end] for each in answer.alternatives)
    assert all(low[1] <= high[0] for low, high in zip(sorted(places), sorted(places)[1:], strict=False))
    scores = [each.score for each in (answer, *answer.alternatives)]
    assert scores == sorted(scores, reverse=True) and sum(scores) <= 1 + 1e-9
    assert model.run(("Who was there?", text)).score == answer.score  # it does not depend on the number of answers


def test_a_model_trained_on_unanswerable_questions_uses_its_threshold(model: Any, tmp_path: Path) -> None:
    """And config.json states it; without that a model always answers."""
    asks = ("How much?", told(random.Random(3))[0])
    assert (
        model.network.allows_no_answer
        and model.run(asks) == model.run(asks, threshold=0.0)
        and model.run(asks).text == ""
    )
    assert model.trace(asks).answer == ""
    file = tmp_path / "wrong.jsonl"  # all have answers, and it is scored as it answers
    file.write_text(json.dumps({"question": asks[0], "context": asks[1], "answers": [asks[1].split()[0]]}) + "\n")
    written = tmp_path / "said.jsonl"
    CliRunner().invoke(app, ["evaluate", str(model.folder.parent), str(file), "--predictions", str(written)])
    assert json.loads(written.read_text())["prediction"] == ""
    model.save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert config["no_answer"] is True and regard.load(tmp_path / "ours").run(asks).text == ""
    for value, said in ((None, ""), ("yes", "no_answer = 'yes' should be true or false")):
        without = {key: each for key, each in config.items() if key != "no_answer"}
        (tmp_path / "ours/config.json").write_text(json.dumps(without | ({"no_answer": value} if value else {})))
        if said:
            with pytest.raises(UserError, match=said):
                regard.load(tmp_path / "ours")
        else:
            assert regard.load(tmp_path / "ours").run(asks).text


def test_a_threshold_allows_no_answer(model: Any) -> None:
    text, name, _ = told(random.Random(11))
    asks = [("Who was there?", text), ("How much?", text)]
    assert all(answer.text for answer in model.run(asks, threshold=float("inf")))
    first, second = model.run(asks, threshold=0.0)
    assert first.text == name and (second.text, second.start, second.end) == ("", 0, 0)
    assert all(answer.text == "" for answer in model.run(asks, threshold=-1e9))
    assert all(answer.text for answer in model.run(asks, threshold=1e9))


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("Who?", {}, "input 1 should be a question and its passage, separated by a tab"),
        ({"question": "Who?"}, {}, "input 1 has the keys question; expected question and context"),
        (("Who?", " "), {}, "input 1 has an empty context"),
        (("", "a"), {}, "input 1 has an empty question"),
        ([("", "a"), ("Who?", 7)], {}, "input 2 has a context that is not text: 7"),
        ([("Who?", 7)], {}, "input 1 has a context that is not text: 7"),
        (("who " * 40, "wind"), {}, "input 1 has a question of 40 tokens; at most 21 leave room"),
        (("Who?", "wind"), {"best": 0}, "best = 0 should be"),
        (("Who?", "wind"), {"threshold": "x"}, "threshold = 'x' should be a number"),
        (("Who?", "wind"), {"num_beams": 2}, "'num_beams' is not an option of a question-answering model; it is for"),
    ],
)
def test_an_input_that_is_not_a_question_is_an_error(model: Any, given: Any, options: Any, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        model.run(given, **options)


def test_a_trace_has_the_answer_and_one_window(model: Any) -> None:
    text, name, _ = told(random.Random(11))
    trace = model.trace(("Who was there?", text))
    assert trace.answer == name and trace.sites[0] == "encoder.blocks.0.self"
    size = len(trace.source)
    assert trace.weights(trace.sites[0]).shape[-2:] == (size, size)
    assert model.trace("Who was there?", context=text).answer == name
    assert model.trace({"question": "Who was there?", "context": text}).answer == name
    with pytest.raises(UserError, match="tokens, the model's context is 48"):
        model.trace(("Who was there?", long_text()))
    assert len(model.trace(("Who was there?", long_text()), truncate=True).source) == 48


# ── pure pieces ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_windows_in_memory_are_those_on_disk(tmp_path: Path) -> None:
    options = recipe(lay_out(tmp_path, 12), SCRATCH, 3, "data.max_length=24", "data.stride=7")
    loaded: Any = prepare_network(options)
    task: Any = Answer(options, loaded.processor, loaded.network, tmp_path / "cache")
    asks = [task.training.question(number) for number in range(task.training.questions)]
    alone = [Question(str(number), each.text, each.context) for number, each in enumerate(asks)]
    asking = live_windows(alone, loaded.processor.target, 24, 7)
    assert len(asking) == len(task.training) and asking.lengths.tolist() == task.training.lengths.tolist()
    for number in range(len(asking)):
        here, there = collate(asking, [number]), collate(task.training, [number])
        assert torch.equal(here.text.tokens, there.text.tokens) and torch.equal(here.context, there.context)
    assert all(np.array_equal(asking.spans(number), task.training.spans(number)) for number in range(len(asks)))


def test_the_sentence_around_an_answer() -> None:
    text = "It rained.\nAda wrote notes. Bob read them! " + "x" * 500 + " end"
    start = text.index("Bob")
    assert text[slice(*sentence_around(text, start, start + 3))] == "Bob read them! "
    assert text[slice(*sentence_around(text, 11, 14))] == "Ada wrote notes. "
    low, high = sentence_around(text, 300, 310)
    assert low <= 300 and high >= 310 and high - low <= 2 * 160 + 10


# ── the command line, scores, errors ─────────────────────────────────────────────────────────────────────────────────


def test_it_runs_from_the_command_line(learnt: Path, model: Any) -> None:
    text = long_text()
    (learnt / "text.txt").write_text(text, encoding="utf-8")
    run = ["run", str(learnt / "run")]
    asked = CliRunner().invoke(app, [*run, "Who was there?", "When was it?", "--context", str(learnt / "text.txt")])
    assert asked.output.splitlines() == ["Cleo", "1844"]
    lines = "Who was there?\tthe wind and Ada sang\n\nHow much?\tthe wind and Ada sang\n"
    piped = CliRunner().invoke(app, [*run, "--threshold", "0"], input=lines)
    assert piped.output.splitlines() == ["Ada", "", ""]
    found = CliRunner().invoke(app, [*run, "Who was there?", "--context", str(learnt / "text.txt"), "--json", "--best", "2"])  # fmt: skip  # noqa: E501
    answer = json.loads(found.output)
    assert answer["text"] == text[answer["start"] : answer["end"]] == "Cleo" and len(answer["alternatives"]) == 1
    assert answer == json.loads(json.dumps(asdict(model.run(("Who was there?", text), best=2))))
    asked = ("Who was there?", text)
    segments = model.predictor().segments(model.run(asked), asked, {})
    assert [each.text.strip() for each in segments if "…" in each.text and each.style == "dim"] == ["…", "…"]
    context = {"context": "the wind and Ada sang"}
    alone = model.predictor().segments(model.run("Who was there?", **context), "Who was there?", context)
    assert "…" not in "".join(each.text for each in alone)
    assert [each.text for each in segments if each.style == "highlight"] == ["Cleo"]
    shown = "".join(each.text for each in segments).splitlines()
    assert len(shown) == 2 and shown[0].startswith("Cleo  ") and "characters" in shown[0] and "Cleo" in shown[1]
    missing = CliRunner().invoke(app, [*run, "Who?", "--context", str(learnt / "nothing.txt")])
    assert missing.exit_code == 1 and "nothing.txt: file not found" in str(missing.exception or missing.output)


def test_it_is_evaluated_on_its_split_and_on_a_file(learnt: Path, model: Any) -> None:
    """With unanswerable questions scored separately, and the best threshold for them."""
    found = json.loads(CliRunner().invoke(app, ["evaluate", str(learnt / "run"), "--json"]).output)
    assert found["split"] == "validation" and {each["name"] for each in found["scores"]} == {"exact_match", "f1"}
    assert found["answerable"]["questions"] == 2 * found["unanswerable"]["questions"]
    assert all(each["value"] > 90 and each["signature"].startswith("squad|") for each in found["scores"])
    values = {each["name"]: each["value"] for each in found["scores"]}
    assert all(found["best_threshold"][name]["reached"] >= value - 1e-9 for name, value in values.items())
    rows = [f"Who was there?\t{text}\t{name}" for text, name, _ in map(told, map(random.Random, range(9)))]
    (learnt / "own.tsv").write_text("q\tc\ta\n" + "\n".join(rows) + "\n")
    columns = ["--source", "q", "--text-pair", "c", "--target", "a"]
    columns += ["--predictions", str(learnt / "told.jsonl")]
    own = CliRunner().invoke(app, ["evaluate", str(learnt / "run"), str(learnt / "own.tsv"), "--json", *columns])
    own = json.loads(own.output)
    line = json.loads((learnt / "told.jsonl").read_text().splitlines()[0])
    assert line["location"].endswith("own.tsv:2") and line["reference"] == [rows[0].split("\t")[2]]
    assert line["input"] == "Who was there?" and line["prediction"] == model.run(tuple(rows[0].split("\t")[:2])).text
    asks = [tuple(row.split("\t")[:2]) for row in rows]
    right = [answer.text == row.split("\t")[2] for answer, row in zip(model.run(asks), rows, strict=True)]
    assert own["samples"] == 9 and own["scores"][0]["value"] == pytest.approx(100 * np.mean(right))
    assert "unanswerable" not in own and "best_threshold" not in own


def test_two_are_compared(learnt: Path) -> None:
    run = str(learnt / "run")
    found = json.loads(CliRunner().invoke(app, ["evaluate", run, "--compare", run, "--json"]).output)
    assert {each["metric"] for each in found["comparison"]} == {"exact_match", "f1"}
    assert all((each["p"], each["verdict"]) == (1, "no difference") for each in found["comparison"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"context": "Ada sang.", "question": "Who?", "answers": [{"text": "Ida"}]}, "asked.jsonl:1, question 1: the answer 'Ida' does not occur"),  # noqa: E501
        ({"text": "Ada sang.", "question": "Who?", "answers": []}, "asked.jsonl:1: no 'context'; it has: text, "),
        ({"context": "Ada sang.", "answers": []}, "no 'question'"),
        ({"context": "Ada sang.", "question": "", "answers": []}, "no question left to use: 1 questions read, 0 kept; 1 skipped: empty question or text (first: "),  # noqa: E501
        ({"context": "Ada sang.", "question": "sang " * 60, "answers": []}, "1 skipped: a question longer than 29 tokens (first: "),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_data_is_an_error_with_its_location(line: Any, said: str, tmp_path: Path, learnt: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(json.dumps(line) + "\n")
    place = next((learnt / "run").glob("checkpoint-*"))
    options = recipe(tmp_path, f'from = "{place}"', 3, 'data.validation=""')
    with pytest.raises(UserError, match=re.escape(said)):
        start(options, quiet=True)


def test_windows_longer_than_the_maximum_length_are_errors(tmp_path: Path) -> None:
    options = recipe(lay_out(tmp_path, 8), SCRATCH, 3, "data.max_length=49")
    with pytest.raises(UserError, match=r"data\.max_length = 49, but the model reads at most 48 tokens"):
        start(options, quiet=True)
    with pytest.raises(UserError, match="does not support task = 'answer'; expected one of: bert"):
        start(recipe(tmp_path, 'family = "gpt"\npreset = "tiny"'), quiet=True)


def test_the_doctor_checks_questions(tmp_path: Path) -> None:
    found = examine(recipe(lay_out(tmp_path, 20, silent=True), SCRATCH, 3))
    assert not found.errors and not any("windows of at most" in line for line in found.warnings)
    assert found.facts["samples"]["train"]["kept"] > 0
    assert found.facts["questions"]["train"]["without_answer"] > 0
    assert found.facts["train_overlap"]["validation"]["same_text"] == 0


def test_dropout_is_that_of_the_recipe_if_set(tmp_path: Path) -> None:
    place = lay_out(tmp_path, 8)
    for given, wanted in (("0.25", 0.25), ("-1", 0.0)):
        network: Any = prepare_network(recipe(place, SCRATCH, 3, f"train.dropout={given}")).network
        for dropout in (network.dropout, network.body.embed.dropout):
            assert dropout.keep_threshold / 65536 == wanted
    with pytest.raises(UserError, match=r"train\.dropout = 1\.0: must be"):
        recipe(place, SCRATCH, 3, "train.dropout=1.0")


def test_the_order_of_batches_is_the_seeds(tmp_path: Path) -> None:
    options = recipe(lay_out(tmp_path, 20))
    loaded: Any = prepare_network(options)
    task: Any = build(options, loaded.processor, loaded.network)
    whole = [batch.indices.tolist() for batch in islice(task.batches(0, 0, 1), 6)]
    assert [batch.indices.tolist() for batch in islice(task.batches(2, 0, 1), 4)] == whole[2:]
    assert score_windows(loaded.network, task.training, whole[0]).keys() == {*whole[0]}
