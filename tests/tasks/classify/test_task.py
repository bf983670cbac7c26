"""Labelled text: reference logits in both directions, training, the auxiliary loss, exact resume, and errors."""

import json
import random
import re
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checkpoints import tokenizer, vocabulary
from language_checkpoints import SMALL, TOKENS, language_model, write
from safetensors.torch import load_file

import regard
from regard.cli.main import main
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.interop import folder
from regard.interop.label_config import PAIR
from regard.layers.inputs import TokenBatch, pad
from regard.metrics import classification as marks
from regard.models import registry as models
from regard.models.heads.sequence import Classifier
from regard.tasks.classify.evaluate import select
from regard.tasks.classify.files import PAIR_SEPARATOR, learn_labels, read
from regard.tasks.classify.options import ClassifyData
from regard.tasks.classify.predict import classify
from regard.tasks.classify.texts import PairEncoder, Texts
from regard.tasks.registry import build
from regard.text.special_tokens import with_end_token
from regard.text.vocabulary import Vocabulary
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine

RECIPE = """
task = "classify"
[data]
train = "train.tsv"
validation = "validation.tsv"
[model]
{model}
[train]
batch_size = 7
max_steps = {steps}
eval_steps = 4
save_steps = 4
learning_rate = 1e-2
schedule = "constant"
warmup_steps = 2
threads = 1
"""
SCRATCH = 'family = "gpt"\npreset = "tiny"\nwidth = 24\ndepth = 2\nlimit = 32\ndropout = 0.1'
LABELS = ("few", "many", "none")
FILES = ("model.safetensors", "training.safetensors", "config.json", "tokenizer.json")


def sample(chance: random.Random) -> tuple[str, str]:
    """A text whose label is determined by its words: how many of them are w0."""
    words = [f"w{chance.randrange(1, 30)}" for _ in range(chance.randint(2, 9))]
    label = chance.choice(LABELS)
    count = {"few": 1, "many": 4, "none": 0}[label]
    words += ["w0"] * count
    chance.shuffle(words)
    return label, " ".join(words)


def lay_out(place: Path, header: str = "label\ttext", count: int = 90) -> Path:
    chance = random.Random(3)
    for name, size in (("train", count), ("validation", 31), ("test", 40)):
        rows = ["\t".join(sample(chance)) for _ in range(size)]
        (place / f"{name}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return place


def recipe(place: Path, model: str = SCRATCH, steps: int = 9, *overrides: str) -> Any:
    path = place / "recipe.toml"
    path.write_text(RECIPE.format(model=model, steps=steps))
    return load_recipe(path, [f"output={place / 'run'}", *overrides])


def goes_on_to_the_same_bits(place: Path, model: str, *options: str) -> None:
    """A run that was stopped and resumed is, to the byte, one that never was."""
    start(recipe(place, model, 6, *options, f"output={place / 'whole'}"), quiet=True)
    start(recipe(place, model, 4, *options), quiet=True)
    resume(place / "run", quiet=True, overrides=["train.max_steps=6"])
    for name in ("model.safetensors", "training.safetensors", "config.json"):
        one, two = (place / run / "checkpoint-6" / name for run in ("whole", "run"))
        assert one.read_bytes() == two.read_bytes(), name


def base(place: Path, kind: str, **fields: Any) -> Path:
    return write(language_model(kind, **fields), place, vocabulary(TOKENS))


def texts(count: int = 9) -> list[str]:
    chance = random.Random(5)
    return [sample(chance)[1] for _ in range(count)]


# ── the reference ────────────────────────────────────────────────────────────────────────────────────────────────────


def reference(kind: str, **fields: Any) -> Any:
    """transformers' classifier with random weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    named = {number: f"label {number}" for number in range(5)}
    sizes = {"vocab_size": TOKENS, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes |= {"id2label": named, "label2id": {label: number for number, label in named.items()}}
    config = AutoConfig.for_model(kind, **(sizes | SMALL[kind] | fields))
    return AutoModelForSequenceClassification.from_config(config).eval()


def opened(place: Path) -> Any:
    from transformers import AutoModelForSequenceClassification

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(place, output_loading_info=True)
    model, report = loaded
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


@pytest.mark.parametrize("kind", SMALL)
@torch.no_grad()
def test_a_published_classifier_is_the_references(kind: str, tmp_path: Path) -> None:
    theirs = reference(kind)
    model = regard.load(write(theirs, tmp_path / "theirs", vocabulary(TOKENS)))
    assert model.task == "classify"
    rows = [torch.randint(3, TOKENS, (length,)).tolist() for length in (13, 1, 7, 29)]
    tokens = pad(rows, 0)
    expected = theirs(input_ids=tokens.tokens, attention_mask=tokens.real.long()).logits
    assert (model.network(tokens) - expected).abs().max() <= 1e-5
    found = model.module(input_ids=tokens.tokens, attention_mask=tokens.real.long())
    assert (found.logits - expected).abs().max() <= 1e-5
    (answer,) = model.run(["w3 w5 w0"])
    assert list(answer.scores) == [f"label {number}" for number in range(5)]
    model.save(tmp_path / "ours")
    again = opened(tmp_path / "ours")
    assert again.config.id2label == theirs.config.id2label
    assert (again(input_ids=tokens.tokens, attention_mask=tokens.real.long()).logits - expected).abs().max() <= 1e-5
    before, after = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "ours"))
    assert before.keys() == after.keys()


@pytest.mark.parametrize("kind", SMALL)
@torch.no_grad()
def test_a_classifier_of_ours_opens_in_transformers_with_its_tokenizer(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    place = lay_out(tmp_path)
    with torch.enable_grad():
        start(recipe(place, f'from = "{base(tmp_path / "base", kind)}"', 3), quiet=True)
    model = regard.load(place / "run")
    model.save(tmp_path / "ours")
    inputs = AutoTokenizer.from_pretrained(tmp_path / "ours")(
        texts(), padding=True, return_tensors="pt", return_token_type_ids=False
    )
    chances = opened(tmp_path / "ours")(**inputs).logits.softmax(-1)
    for expected, answer in zip(chances, model.run(texts()), strict=True):
        assert (torch.tensor(list(answer.scores.values())) - expected).abs().max() <= 1e-5
        assert answer.label == model.network.labels[int(expected.argmax())]


def test_padding_of_other_libraries_is_not_text(tmp_path: Path) -> None:
    """It classifies the last token that is not padding, also if a text ends with the padding token."""
    theirs = reference("gpt2", pad_token_id=2)
    model = regard.load(write(theirs, tmp_path, vocabulary(TOKENS)))  # whose tokenizer puts 2 behind a text
    assert model.predictor().modality.encoder.rows(["w3 w4"]) == [[7, 8]]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"problem_type": "regresion"}, "problem_type = 'regresion' is not supported; expected one of: single_label"),
        ({"id2label": {"0": "a", "2": "b"}}, "should name the labels 0, 1, 2"),
        ({"problem_type": "single_label_classification", "id2label": {"0": "a"}}, "two different labels"),
        ({"id2label": None, "num_labels": 1}, r"score\.weight \(5, 22\) instead of \(1, 22\)"),
        ({"id2label": None, "num_labels": 1 << 40}, "num_labels = 1099511627776, but id2label is missing"),
        ({"label_scale": 3}, "label_scale = 3 should be a power of two"),
    ],
)
def test_other_heads_are_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(reference("gpt2"), tmp_path, vocabulary(TOKENS))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(UserError, match=said):
        regard.load(tmp_path)


# ── text and labels ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_file_format_has_the_same_samples(tmp_path: Path) -> None:
    rows = [("pos:very", "a, b", "c"), ("neg", 'say "hi"', "d")]
    (tmp_path / "a.tsv").write_text("label\ttext\tmore\n" + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": b, "label": a, "more": c}) + "\n" for a, b, c in rows)
    )
    (tmp_path / "a.csv").write_text('label,text,more\npos:very,"a, b",c\nneg,"say ""hi""",d\n')
    for name in ("a.tsv", "a.jsonl", "a.csv"):
        options = ClassifyData(train=name, text_pair="more", label_prefix_until=":")
        found = [(each.source, each.target) for each in read(options, "train", tmp_path)]
        assert found == [(f"a, b{PAIR_SEPARATOR}c", "pos"), (f'say "hi"{PAIR_SEPARATOR}d', "neg")]
        assert learn_labels(options, tmp_path) == ("neg", "pos")
    (tmp_path / "b.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n')
    assert learn_labels(ClassifyData(train="b.jsonl"), tmp_path) == ("0", "1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label,text\n", "a.csv: has a header but no rows"),
        ('label,text\n"a,b\n', "a.csv:2: a quote that opens in this row is never closed"),
        ("label,text\na,b,c\n", "a.csv:2: 3 fields, but 2 columns"),
        ("label,words\na,b\n", "a.csv:1: no column 'text'"),
        ("label,text\na,b\na,c\n", "has the one label 'a'; classification needs two"),
    ],
)
def test_broken_files_are_errors_with_their_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError) as error:
        learn_labels(ClassifyData(train="a.csv"), tmp_path)
    assert said in str(error.value)


def test_a_label_unseen_in_training_is_an_error_with_its_location(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    start(recipe(tmp_path, SCRATCH, 1), quiet=True)
    path = tmp_path / "validation.tsv"
    path.write_text(path.read_text() + "lots\tw0 w0\n")
    said = "validation.tsv:33: unknown label 'lots'; the model was trained with: few, many, none"
    with pytest.raises(UserError, match=said):
        start(recipe(tmp_path, SCRATCH, 1, f"output={tmp_path / 'other'}"), quiet=True)
    assert not (tmp_path / "other").exists()
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), str(path)])
    assert said in capfd.readouterr().err
    path.write_text("name\twords\nfew\tw0\n")
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), str(path)])
    said = capfd.readouterr().err
    assert "no column 'text' and 'label'; line 1 is: name, words;" in said
    assert "with --source NAME and --target NAME" in said and "--columns NAME,…" in said


def test_two_texts_have_an_end_between_and_padding_is_another_token() -> None:
    plain = tokenizer(TOKENS)
    plain.pad = plain.end
    made = with_end_token(plain)
    rows = PairEncoder(made, paired=True).encode_many([f"w0 w1{PAIR_SEPARATOR}w2", f"w3{PAIR_SEPARATOR}"])
    assert rows == [[4, 5, 2, 6, 2], [7, 2, 2]]
    assert PairEncoder(made).encode_many(["w0 w1"]) == [[4, 5, 2]]
    assert made.pad not in (made.end, -1)


def test_long_texts_are_skipped_in_training_and_errors_or_truncated_in_inference(tmp_path: Path) -> None:
    lay_out(tmp_path)
    path = tmp_path / "train.tsv"
    path.write_text(path.read_text() + "many\t" + "w0 " * 40 + "\n")
    start(recipe(tmp_path, SCRATCH, 1, "tokenizer.kind=words"), quiet=True)
    task = build(*_task(tmp_path))
    assert "1 skipped: longer than 32 tokens (first: " in task.reports["train"]
    model, long = regard.load(tmp_path / "run"), "w1 " * 40
    with pytest.raises(UserError, match=r"has 41 tokens, the model reads at most 32: .*--truncate"):
        model.run(long)
    answer = model.run(long, truncate=True)
    assert answer.truncated and answer.scores == model.run("w1 " * 31).scores
    with pytest.raises(UserError, match="input 1 is empty"):
        model.run(" ")
    assert [each.label for each in model.run(["w1", " "])] == [model.run("w1").label, None]
    with pytest.raises(UserError, match="'num_beams' is not an option of a classifier"):
        model.run("w1", num_beams=2)
    with pytest.raises(UserError, match=r"generate\(\) is not available for task = 'classify'"):
        model.generate([4, 5])


def _task(place: Path) -> tuple[Any, Any, Any]:
    options = load_recipe(place / "run" / "recipe.toml")
    loaded = prepare_network(options, place / "run")
    return options, loaded.processor, loaded.network


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def network(labels: int = 3, **fields: Any) -> Classifier:
    body = models.build({"family": "gpt", "preset": "tiny", "dropout": 0.0, **fields}, vocabulary=TOKENS)
    return Classifier(body, [f"l{number}" for number in range(labels)]).eval()


@torch.no_grad()
def test_the_loss_is_that_of_the_label_and_of_the_text(tmp_path: Path) -> None:
    """Each text by itself: cross-entropy of its label, and half the mean of its tokens."""
    options = recipe(lay_out(tmp_path), SCRATCH, 1, "train.lm_loss_weight=0.5")
    loaded = prepare_network(options)
    found: Any = loaded.network.eval()
    task: Any = build(options, loaded.processor, found)
    batch = next(task.batches(0, 0, 1))
    expected = 0.0
    for tokens, length, label in zip(*batch.inputs[:2], batch.labels, strict=True):
        row = tokens[:length]
        expected += float(F.cross_entropy(found(pad([row.tolist()], 0)), label[None]))
        expected += 0.5 * float(F.cross_entropy(found.body(row[None, :-1])[0], row[1:]))
    assert float(task.loss(found, batch)) == pytest.approx(expected, rel=1e-5)
    assert task.num_targets(batch) == 7


@torch.no_grad()
def test_other_sequences_in_the_batch_and_padding_change_nothing() -> None:
    made, found = with_end_token(tokenizer(TOKENS)), network()
    modality = Texts(None, ClassifyData(), Vocabulary(made, made), found)
    together: list[Any] = [*classify(modality, texts())]
    for text, expected in zip(texts(), together, strict=True):
        alone: Any = classify(modality, [text])[0]
        assert alone.scores == pytest.approx(expected.scores, abs=1e-6)
        assert sum(alone.scores.values()) == pytest.approx(1)
        assert alone.score == max(alone.scores.values())


@pytest.mark.parametrize(
    "kind", ["scratch", "gpt2", "llama, untied", "llama, untied, auxiliary", "gpt2, lora", "llama, lora, auxiliary"]
)
def test_an_interrupted_run_resumes_bit_identically(kind: str, tmp_path: Path) -> None:
    name, *more = kind.split(", ")
    model = SCRATCH
    if name != "scratch":
        fields = {"tie_word_embeddings": False} if "untied" in more else {}
        model = f'from = "{base(tmp_path / "base", name, **fields)}"'
    model += '\nlora_rank = 2\nlora_targets = "query output"' if "lora" in more else ""
    options = ["train.lm_loss_weight=0.5"] if "auxiliary" in more else ["train.ema_decay=0.8"]
    lay_out(tmp_path)
    start(recipe(tmp_path, model, 9, *options, f"output={tmp_path / 'whole'}"), quiet=True)
    start(recipe(tmp_path, model, 4, *options), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=9"])
    weights = "adapter_model.safetensors" if "lora" in more else "model.safetensors"
    for file in (weights, *FILES[1:]):
        ends = [(tmp_path / run / "checkpoint-9" / file).read_bytes() for run in ("whole", "run")]
        assert ends[0] == ends[1], file
    tensors = load_file(tmp_path / "run" / "checkpoint-9" / weights)
    assert ("lm_head.weight" in tensors) == ("auxiliary" in more and "untied" in more)
    if "lora" in more:
        assert {each for each in tensors if "lora" not in each} == {"base_model.model.score.weight"}
    assert regard.load(tmp_path / "run").task == "classify"


def test_it_learns_and_is_evaluated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place, names = lay_out(tmp_path, count=300), {"few": "many", "many": "none", "none": "few"}
    lines = (place / "test.tsv").read_text().splitlines()
    wrong = ["\t".join([names[line.split("\t")[0]], line.split("\t")[1]]) for line in lines[1:6]]
    (place / "test.tsv").write_text("\n".join([lines[0], *wrong, *lines[6:]]))  # no model is right of all
    options = ("tokenizer.kind=words", "data.test=test.tsv", "train.eval_steps=60", "train.learning_rate=3e-3")
    outcome = start(recipe(place, SCRATCH, 120, *options), quiet=True)
    assert outcome.progress.best_score is not None and outcome.progress.best_score > 90
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(place / "run"), "--json", "--threads", "1"])
    assert left.value.code == 0
    found = json.loads(capfd.readouterr().out)
    assert found["samples"] == 40 and found["split"] == "test"
    accuracy, f1, matthews = found["scores"]
    model = regard.load(place / "run")
    rows = [line.split("\t") for line in (place / "test.tsv").read_text().splitlines()[1:]]
    answers = model.run([text for _, text in rows])
    hits = [answer.label == label for answer, (label, _) in zip(answers, rows, strict=True)]
    assert accuracy["value"] == pytest.approx(100 * np.mean(hits)) and accuracy["interval"] > 0
    assert 0 < f1["value"] <= 100 and 0 < matthews["value"] <= 100
    assert f1["name"] == "macro_f1" and f1["signature"].startswith("mean of 3 labels")
    assert found["loss"] == pytest.approx(
        -np.mean([np.log(a.scores[r[0]]) for a, r in zip(answers, rows, strict=True)])
    )
    assert found["majority_baseline"] == max(row["samples"] for row in found["by_label"].values()) / 0.4
    assert sum(row["samples"] for row in found["by_label"].values()) == 40
    assert sum(sum(row.values()) for row in found["confusion_matrix"].values()) == 40
    with pytest.raises(SystemExit):
        main(["run", str(place / "run"), rows[0][1], rows[1][1]])
    assert capfd.readouterr().out.splitlines() == [answer.label for answer in answers[:2]]
    assert model.trace(rows[0][1]).answer == answers[0].label
    assert model.embed([rows[0][1]]).shape == (1, 24)


def test_a_result_at_the_majority_baseline_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lay_out(tmp_path)
    start(recipe(tmp_path, SCRATCH, 1, "train.learning_rate=1e-9", "data.test=train.tsv"))
    said = r"accuracy (\S+) is not above (\S+), the result of always predicting the most frequent label \(majority"
    said += r" baseline\): .* Train longer \(train\.epochs\), raise train\.learning_rate, or add training data"
    trained = re.search(f"warning: validation {said}", capfd.readouterr().err)
    assert trained and float(trained[1]) <= float(trained[2])
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert re.match(said, found["warning"])[2] == f"{found['majority_baseline']:.4g}"  # type: ignore[index]


def test_pairs_are_read_and_required(tmp_path: Path) -> None:
    chance = random.Random(7)
    rows = []
    for _ in range(60):
        (label, text), (_, other) = sample(chance), sample(chance)
        rows.append(f"{label}\t{text}\t{other}")
    for name in ("train", "validation"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["label\tfirst\tsecond", *rows]))
    columns = ("data.text=first", "data.text_pair=second")
    start(recipe(tmp_path, SCRATCH, 2, *columns), quiet=True)
    regard.load(tmp_path / "run").save(tmp_path / "ours")
    model = regard.load(tmp_path / "ours")
    (pair,), line = model.run([("w0 w1", "w2")]), model.run("w0 w1\tw2")
    assert pair == line
    with pytest.raises(UserError, match="input 1 should be two texts"):
        model.run("w0 w1")
    with pytest.raises(UserError, match="the model was trained on pairs of texts"):
        start(
            recipe(tmp_path, f'from = "{tmp_path / "ours"}"', 1, "data.text=first", f"output={tmp_path}/never"),
            quiet=True,
        )
    config = tmp_path / "ours/config.json"
    config.write_text(json.dumps({name: each for name, each in json.loads(config.read_text()).items() if name != PAIR}))
    theirs: Any = regard.load(tmp_path / "ours")  # as published: nothing states that it expects pairs
    chosen = select(theirs, str(tmp_path / "train.tsv"), "first", "label", "second")
    asked = [tuple(row.split("\t")[1:]) for row in rows]
    assert chosen.inputs == asked and theirs.run([("w0 w1", "w2")]) == [pair]
    assert theirs.run(["w0 w1\tw2"]) == [pair]
    again = recipe(tmp_path, f'from = "{tmp_path / "ours"}"', 1, *columns, f"output={tmp_path}/again")
    start(again, quiet=True)
    assert regard.load(tmp_path / "again").network.paired


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"w{number}\tl{number}\n" for number in range(9)))
    with pytest.raises(UserError, match=r"data\.validation = 0\.1: no sample left to use"):
        start(recipe(tmp_path, SCRATCH, 1, "data.validation=0.1"), quiet=True)


def test_pairs_are_split_by_the_named_column(tmp_path: Path) -> None:
    """Also by that of the first text, which several pairs may have."""
    rows = [f"{'ab'[number % 2]}\tfirst {number // 5}\tsecond {number}" for number in range(200)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["label\ttext\ttext2", *rows]))
    data = ClassifyData(train="pairs.tsv", validation=0.3, text_pair="text2")
    shared = {}
    for column in ("source", "text"):
        parts = [read(replace(data, split_by=column), part, tmp_path) for part in ("train", "validation")]
        train, held = ({record.source.split(PAIR_SEPARATOR)[0] for record in part} for part in parts)
        shared[column] = len(train & held)
    assert shared["source"] > 0 == shared["text"]


def test_a_file_to_evaluate_needs_no_split_by_column(tmp_path: Path) -> None:
    lay_out(tmp_path)
    trained = recipe(tmp_path, SCRATCH, 1, "data.split_by=document")
    network = SimpleNamespace(problem_type="single_label", labels=LABELS, paired=False, input_type=TokenBatch)
    model: Any = SimpleNamespace(recipe=trained, network=network, processor=vocabulary(41))
    assert len(select(model, str(tmp_path / "test.tsv"), "", "").records) == 40
    with pytest.raises(UserError, match="document"):  # required for the recipe's own split
        select(model, None, "", "")


def test_impossible_options_are_errors(tmp_path: Path) -> None:
    lay_out(tmp_path)
    start(recipe(tmp_path, SCRATCH, 1), quiet=True)
    run, other = tmp_path / "run", f"output={tmp_path / 'other'}"
    for model, given, said in (
        (f'from = "{run}"', "task=generate", "is a classifier: it cannot do task = 'generate'"),
        (
            'family = "transformer"',
            "seed=2",
            r"does not support task = 'classify'; expected one of: .*gpt, hybrid, llama",
        ),
        (
            SCRATCH,
            "train.score=bleu",
            r"train\.score = 'bleu' is not a metric of task = 'classify'; expected one of: accuracy, macro_f1",
        ),
        (SCRATCH, "data.max_length=33", r"data\.max_length = 33, but the model reads at most 32"),
    ):
        with pytest.raises(UserError, match=said):
            start(recipe(tmp_path, model, 1, other, given), quiet=True)
    again = start(recipe(tmp_path, f'from = "{run}"', 1, other), quiet=True)  # its own labels and head
    assert again.status == "finished"


def test_no_label_is_silently_lost_from_a_base_without_an_output(tmp_path: Path) -> None:
    place, lay = base(tmp_path / "base", "llama", tie_word_embeddings=False), lay_out(tmp_path)
    start(recipe(lay, f'from = "{place}"', 1), quiet=True)
    assert "keeps_lm_head" not in json.loads((lay / "run" / "checkpoint-1" / "config.json").read_text())
    with pytest.raises(
        UserError, match=r"train\.lm_loss_weight = 0\.5, but the model has no language modelling head left"
    ):
        start(
            recipe(lay, f'from = "{lay / "run"}"', 1, "train.lm_loss_weight=0.5", f"output={tmp_path}/never"),
            quiet=True,
        )
    assert folder.load(lay / "run" / "checkpoint-1").network.max_positions == 41


def test_the_doctor_counts_labels_and_what_is_frozen(tmp_path: Path) -> None:
    place = lay_out(tmp_path)
    (place / "train.tsv").write_text((place / "train.tsv").read_text() + "rare\tw1 w2\n")
    model = f'from = "{base(tmp_path / "base", "gpt2")}"\nlora_rank = 2'
    found = examine(recipe(place, model, 9))
    assert found.facts["labels"]["rare"] == {"train": 1, "validation": 0}
    assert sum(row["validation"] for row in found.facts["labels"].values()) == 31
    assert any("fewer than 10 samples of rare" in warning for warning in found.warnings)
    sizes = found.facts["network"]
    assert sizes["optimizer_bytes"] == 2 * sizes["gradient_bytes"]
    assert sizes["gradient_bytes"] == 4 * (3 * 2 * 2 * (22 + 22) + 4 * 22)  # adapters and the head
    assert sizes["weight_bytes"] == 4 * sizes["parameters"] > 2 * sizes["gradient_bytes"]


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_are_their_definitions() -> None:
    chance = np.random.default_rng(1)
    wanted, found = chance.integers(4, size=97), chance.integers(4, size=97)
    wanted[wanted == 3] = 2  # a label that nobody wanted, but that was called
    table = marks.confusion(found.tolist(), wanted.tolist(), 5)
    assert marks.accuracy(table) == pytest.approx(100 * np.mean(found == wanted))
    each = []
    for label in range(4):
        hits = np.sum((found == label) & (wanted == label))
        each.append(200 * hits / (np.sum(found == label) + np.sum(wanted == label)))
    assert marks.macro_f1(table) == pytest.approx(np.mean(each))  # nothing is known about the fifth
    precision, recall, _ = marks.by_class(table).values()
    assert precision[1] == pytest.approx(100 * np.mean(wanted[found == 1] == 1))
    assert recall[1] == pytest.approx(100 * np.mean(found[wanted == 1] == 1))


def test_balanced_labels_count_the_same(tmp_path: Path) -> None:
    place = lay_out(tmp_path)
    (place / "train.tsv").write_text("label\ttext\n" + "few\tw1 w2\n" * 5 + "many\tw3\nnone\tw4\n")
    (place / "validation.tsv").write_text("label\ttext\nfew\tw1\n")
    plain, weighted = (recipe(place, SCRATCH, 1, f"train.class_weights={each}") for each in ("none", "balanced"))
    prepared = prepare_network(plain)
    tasks: list[Any] = [build(each, prepared.processor, prepared.network) for each in (plain, weighted)]
    network = prepared.network.eval()
    batch = next(tasks[0].batches(0, 0, 1))
    losses = F.cross_entropy(network(batch.inputs), batch.labels, reduction="none")
    weights = torch.tensor([7 / (3 * 5), 7 / 3, 7 / 3])[batch.labels]
    torch.testing.assert_close(tasks[0].loss(network, batch), losses.sum())
    torch.testing.assert_close(tasks[1].loss(network, batch), (losses * weights).sum())
