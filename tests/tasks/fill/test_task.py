"""Masked LM pre-training: alone and with sentence pairs, from scratch and from weights; resume; metrics."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import regard
from regard.cli.main import main
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.tasks.fill.batches import draw_pair
from regard.tasks.fill.evaluate import fixed_rows, predict, score_batches
from regard.tasks.registry import build
from regard.text.vocabulary import Vocabulary
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine
from tests.test_model import folder

RECIPE = """
task = "fill"
[data]
train = "texts.jsonl"
validation = 0.3
split_by = "title"
max_length = {length}
{data}
[tokenizer]
vocab_size = 150
[model]
{model}
[train]
batch_size = 8
max_steps = {steps}
eval_steps = 4
eval_samples = 48
save_steps = 4
learning_rate = 3e-3
schedule = "constant"
warmup_steps = 2
threads = 1
"""
SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 48\ndropout = 0.1'
PLACES = [f"{first}{second}" for first in "bdgklmnprs" for second in "aeo"]


def lay_out(place: Path, towns: int = 24) -> Path:
    """Articles of paragraphs; each article is about one place, which determines the word after a verb."""
    chance, lines = random.Random(3), []
    for number in range(24):
        for _ in range(4):
            verbs = [chance.choice(["goes to", "comes from"]) for _ in range(chance.randint(3, 6))]
            town = PLACES[number % towns]
            text = " ".join(f"He {verb} {town} {'now' if 'to' in verb else 'then'}." for verb in verbs)
            lines.append(json.dumps({"title": f"Article {number}", "text": text}))
    (place / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return place


def recipe(place: Path, *overrides: str, model: str = SCRATCH, pairs: str = "next", steps: int = 9) -> Any:
    path = place / "recipe.toml"
    path.write_text(RECIPE.format(model=model, steps=steps, data=f'pairs = "{pairs}"', length=40))
    return load_recipe(path, [f"output={place / 'run'}", *overrides])


def prepared(options: Any) -> tuple[Any, Any]:
    loaded = prepare_network(options)
    return loaded.network, build(options, loaded.processor, loaded.network)


@pytest.mark.parametrize(("pairs", "kind"), [("none", MaskedLM), ("next", Pretraining), ("order", Pretraining)])
def test_the_loss_is_the_paper_s(pairs: str, kind: Any, tmp_path: Path) -> None:
    """Over masked positions only; the mean over pairs has the weight of the mean over tokens."""
    network, task = prepared(recipe(lay_out(tmp_path), pairs=pairs))
    assert type(network) is kind
    batch = next(task.batches(0, 0, 1))
    network.eval()
    with torch.no_grad():
        found = network(batch.text)
        words = found if pairs == "none" else found.mlm
        logits = words.reshape(-1, words.size(-1))[batch.at.reshape(-1)]
        wanted = F.cross_entropy(logits, batch.targets)
        if pairs != "none":
            wanted = wanted + F.cross_entropy(found.nsp, batch.labels)
        assert torch.allclose(task.loss(network, batch) / task.num_targets(batch), wanted, atol=1e-5)
    network.train()
    task.loss(network, batch).backward()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)


def test_it_learns_from_neighbouring_tokens(tmp_path: Path) -> None:
    often = [f"train.{name}=60" for name in ("eval_steps", "save_steps")]
    options = recipe(
        lay_out(tmp_path, 4), *often, "data.max_length=20", "model.dropout=0.0", "train.learning_rate=5e-3", steps=150
    )
    start(options, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = [line["validation"] for line in lines if "validation" in line]
    assert found[0].keys() == {"loss", "perplexity", "accuracy", "nsp_accuracy", "unigram_entropy"}
    assert found[-1]["loss"] < 0.7 * found[-1]["unigram_entropy"] and found[-1]["accuracy"] > 40
    assert len({each["unigram_entropy"] for each in found}) == 1  # the same words each time
    model: Any = regard.load(tmp_path / "run")
    assert model.task == "fill" and isinstance(model.network, Pretraining)
    answer = model.run("He goes <mask> ba now.")
    assert answer.candidates[0][0].text in ("to", "from")
    config = json.loads((model.folder / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]


def test_an_interrupted_run_resumes_bit_identically(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    start(recipe(lay_out(tmp_path / "whole"), steps=8), quiet=True)
    start(recipe(lay_out(tmp_path), steps=4), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=8"])
    for name in ("model.safetensors", "training.safetensors"):
        first, second = (load_file(each / f"run/checkpoint-8/{name}") for each in (tmp_path / "whole", tmp_path))
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("pairs", ["none", "next"])
@pytest.mark.parametrize("head", [MaskedLM, Pretraining])
def test_pre_training_continues_from_weights(head: Any, pairs: str, tmp_path: Path) -> None:
    """With its head, and a new one for pairs if they are configured; an unused pooler is not changed."""
    place = folder(tmp_path, head, pooler=True)
    options = recipe(lay_out(tmp_path), "data.max_length=24", model=f'from = "{place}"', pairs=pairs, steps=2)
    before: Any = regard.load(place).network
    network, _ = prepared(options)
    assert torch.equal(network.lm_head.dense.weight, before.lm_head.dense.weight)
    if head is Pretraining and pairs == "next":
        assert torch.equal(network.nsp_head.weight, before.nsp_head.weight)
    start(options, quiet=True)
    after: Any = regard.load(tmp_path / "run").network
    assert type(after) is (MaskedLM if pairs == "none" else Pretraining)
    assert not torch.equal(after.lm_head.dense.weight, before.lm_head.dense.weight)
    same = torch.equal(after.body.pooler.dense.weight, before.body.pooler.dense.weight)
    assert same == (pairs == "none")


def test_scores_are_those_of_every_row(tmp_path: Path) -> None:
    network, task = prepared(recipe(lay_out(tmp_path)))
    network.eval()
    batches = list(fixed_rows(task.validation, task.tokenizer, task.masking, 1000))
    found = score_batches(network, batches)
    words = torch.cat([batch.targets for batch in batches])
    with torch.no_grad():
        logits = torch.cat([predict(network, batch).logits[0] for batch in batches])
    metrics = found.metrics("none")
    assert np.isclose(metrics["loss"], float(F.cross_entropy(logits, words)), atol=1e-5)
    assert np.isclose(metrics["accuracy"], 100 * float((logits.argmax(1) == words).double().mean()))
    assert found.counts.sum() == len(words) and len(found.counts) == sum(len(batch.at) for batch in batches)
    shares = torch.bincount(words).double() / len(words)
    assert np.isclose(found.unigram_entropy, -float((shares[shares > 0] * shares[shares > 0].log()).sum()))
    assert [sample[1].count("<mask>") for sample in task.preview(network, 3)] == [0, 0, 0]
    assert any("<mask>" in sample[0] for sample in task.preview(network, 3))


def test_another_text_is_another_article_s(tmp_path: Path) -> None:
    """Paragraphs of one article are one document: the second of a pair that does not follow is of another."""
    _, task = prepared(recipe(lay_out(tmp_path)))
    assert task.training.documents + task.validation.documents == 24
    towns = {task.tokenizer.encode(f"He {town}")[-1]: town for town in PLACES}
    chance, strangers = np.random.default_rng(5), 0
    for number in range(200):
        pair = draw_pair(task.training, number % len(task.training), task.masking, chance)
        first, second = ({*map(int, each)} & towns.keys() for each in (pair.first, pair.second))
        if pair.label and first and second and all(len(each) == 1 for each in (first, second)):
            strangers += 1
            assert first != second
    assert strangers > 20


def test_it_is_evaluated_on_the_same_masked_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the held-out split as in training, and on a file of raw text; every metric has an interval."""
    start(recipe(lay_out(tmp_path), "train.eval_samples=500", steps=2), quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    trained = next(line["validation"] for line in lines if "validation" in line)
    told = []
    (tmp_path / "book.txt").write_text("He goes to ba. He comes from da.\n\nHe goes to bo now. He goes to be.\n")
    for file in ([], [str(tmp_path / "book.txt")]):
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", str(tmp_path / "run"), *file, "--json"])
        assert ended.value.code == 0
        told.append(json.loads(capsys.readouterr().out))
    figures = {each["name"]: each["value"] for each in told[0]["scores"]}
    assert figures.keys() == {"loss", "perplexity", "accuracy", "nsp_accuracy"}
    assert all(np.isclose(figures[name], trained[name], rtol=1e-4) for name in figures)
    assert np.isclose(told[0]["unigram_entropy"], trained["unigram_entropy"], rtol=1e-6)
    assert told[1]["rows"] == 2 and all(each["interval"] >= 0 for each in told[1]["scores"])


def test_the_first_rows_of_a_batch_are_its_first(tmp_path: Path) -> None:
    _, task = prepared(recipe(lay_out(tmp_path)))
    batch = next(task.batches(0, 0, 1))
    some = batch.rows(slice(3))
    assert torch.equal(some.targets, batch.targets[: len(some.targets)]) and int(some.at.sum()) == len(some.targets)
    assert len(some.at) == len(some.labels) == len(some.text.lengths) == 3


@pytest.mark.parametrize(
    ("overrides", "model", "said"),
    [
        ((), 'family = "bert"\nwidth = 24\nheads = 2\nlimit = 48\npooler = false', "model.pooler"),
        ((), 'family = "deberta"\nwidth = 24\nheads = 2\nlimit = 48', r"model\.token_types = 2"),
        ((), 'family = "gpt"\npreset = "tiny"', "does not support task = 'fill'"),
        (("train.score=bleu",), SCRATCH, "expected one of: loss, accuracy"),
        (("data.max_length=99",), SCRATCH, "model.max_positions"),
    ],
)
def test_impossible_options_are_errors(overrides: tuple[str, ...], model: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        prepared(recipe(lay_out(tmp_path), *overrides, model=model))


@torch.no_grad()
def test_without_a_pooler_two_texts_are_compared_by_their_means(tmp_path: Path) -> None:
    """Whatever the padding holds, and whoever else is read; one text alone is compared with nothing."""
    model = 'family = "deberta"\nwidth = 24\nheads = 2\ndepth = 2\nlimit = 48\nsegments = 2\ndropout = 0.0'
    network, task = prepared(recipe(lay_out(tmp_path), model=model))
    network.eval()
    batch = next(batch for batch in task.batches(0, 0, 1) if len({*batch.text.lengths.tolist()}) > 1)
    together = network(batch.text).nsp
    for row, length in enumerate(batch.text.lengths.tolist()):
        tokens, segments = (each[row : row + 1, :length] for each in (batch.text.tokens, batch.text.segments))
        states = network.encode(TokenBatch(tokens, torch.tensor([length]), segments))[0]
        first, second = (states[segments[0] == number].mean(0) for number in (0, 1))
        expected = network.nsp_head(F.gelu(network.pair_pooler.dense(first * second)))
        torch.testing.assert_close(together[row], expected, atol=1e-6, rtol=1e-5)
    spoilt = batch.text._replace(tokens=batch.text.tokens.masked_fill(~batch.text.real, 7))
    torch.testing.assert_close(network(spoilt).nsp, together, atol=1e-6, rtol=1e-5)
    assert network(batch.text._replace(segments=None)).nsp.isfinite().all()


@pytest.mark.parametrize(
    ("pairs", "said"), [("none", "text too short: 7 tokens, but one block needs 38"), ("next", "there is only one")]
)
def test_a_split_that_is_too_small_is_an_error_before_training(pairs: str, said: str, tmp_path: Path) -> None:
    """Not hundreds of steps later, where it would first be scored."""
    (tmp_path / "few.jsonl").write_text(json.dumps({"title": "one", "text": "He goes. He comes."}) + "\n")
    with pytest.raises(UserError, match=f"data.validation: .*{said}"):
        prepared(recipe(lay_out(tmp_path), "data.validation=few.jsonl", pairs=pairs))


def test_the_doctor_counts_documents_and_rows(tmp_path: Path) -> None:
    for pairs in ("none", "next"):
        found = examine(recipe(lay_out(tmp_path), pairs=pairs))
        assert not found.errors and found.facts["rows"]["rows_per_batch"] == 8
        assert found.facts["text"]["train"]["documents"] + found.facts["text"]["validation"]["documents"] == 96
        assert found.facts["text"]["train"]["rows"] > 0


def test_a_tokenizer_is_taken_from_a_folder(tmp_path: Path) -> None:
    start(recipe(lay_out(tmp_path), f"output={tmp_path / 'first'}", steps=1), quiet=True)
    options = recipe(tmp_path, f"tokenizer.folder={tmp_path / 'first'}", "tokenizer.vocab_size=60", steps=1)
    start(options, quiet=True)
    first, second = (Vocabulary.load(tmp_path / each / "checkpoint-1").target for each in ("first", "run"))
    assert first.content() == second.content() and second.size > 60
