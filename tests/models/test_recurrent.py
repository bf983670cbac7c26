"""Recurrent encoders as classifiers: last state, mean, or attention pooling with its trace; save and load."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.models.heads.sequence import Classifier
from regard.models.registry import build, configure
from regard.training.build import start
from regard.training.layerwise import layer_groups
from tests.tasks.classify.test_task import goes_on_to_the_same_bits, lay_out, recipe, texts

SCRATCH = 'family = "recurrent"\nembedding = 16\nwidth = 24\nlimit = 32\ndropout = 0.1\npooling = "{}"'
SHAPES: dict[str, dict[str, Any]] = {
    "both ways": dict(cell="lstm", depth=2),
    "one way": dict(cell="gru", bidirectional=False),
    "looking back": dict(cell="lstmn", bidirectional=False, score_width=7),
}
WORDS = 31


def network(pooling: str, **fields: Any) -> Any:
    torch.manual_seed(1)
    sizes = {"family": "recurrent", "embedding_width": 14, "width": 22, "pooling": pooling}
    made = Classifier(build(sizes | fields, vocabulary=WORDS), ("few", "many", "none")).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def some(*lengths: int) -> TokenBatch:
    return TokenBatch(torch.randint(WORDS, (len(lengths), max(lengths))), torch.tensor(lengths))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
@torch.no_grad()
def test_padding_and_other_sequences_in_the_batch_change_nothing(pooling: str, shape: str) -> None:
    found, text = network(pooling, **SHAPES[shape]), some(11, 3, 7)
    together = found(text)
    for row, length in enumerate(text.lengths.tolist()):
        alone = found(TokenBatch(text.tokens[row : row + 1, :length], torch.tensor([length])))
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_the_last_hidden_state_is_that_of_the_last_real_token(shape: str) -> None:
    found, text = network("last", **SHAPES[shape]), some(11, 3, 7)
    body = found.body
    reading = body.encoder(body.embed(text.tokens), text.lengths)
    assert torch.equal(found.pool(reading.states, text), reading.last)


@torch.no_grad()
def test_a_mean_is_a_mean_and_attention_is_its_formula() -> None:
    text = some(11, 3, 7)
    mean_pooling = network("mean")
    states = mean_pooling.encode(text)
    expected = torch.stack([row[:length].mean(0) for row, length in zip(states, text.lengths, strict=True)])
    torch.testing.assert_close(mean_pooling.pool(states, text), expected, atol=1e-6, rtol=0)
    assert not list(mean_pooling.pool.parameters())
    weighed = network("attention", score_width=9).pool
    for row, length, found in zip(states, text.lengths, weighed(states, text), strict=True):
        hidden = torch.tanh(weighed.query + row[:length] @ weighed.attend.key.weight.T)
        weights = (hidden @ weighed.attend.score.energy.weight[0]).softmax(0)
        torch.testing.assert_close(found, weights @ row[:length], atol=1e-5, rtol=0)


def test_its_layers_are_stacked() -> None:
    found = network("attention", depth=3)
    names = {parameter: name for name, parameter in found.named_parameters()}
    bottom, *layers, head = [{names[each] for each in level} for level in layer_groups(found)]
    assert bottom == {"body.embed.table.weight"} and len(layers) == 3
    for number, layer in enumerate(layers):
        assert {name.split(".")[3] for name in layer} == {str(number)}
        assert {name.split(".")[2] for name in layer} == {"forwards", "backwards"}
    assert {name.split(".")[0] for name in head} == {"pool", "head"}


def test_it_learns_and_its_folder_opens(tmp_path: Path) -> None:
    often = [f"train.{name}=150" for name in ("eval_steps", "save_steps")]
    options = ("tokenizer.kind=words", *often)
    start(recipe(lay_out(tmp_path), SCRATCH.format("attention"), 150, *options), quiet=True)
    assert json.loads((tmp_path / "run/best.json").read_text())["score"] > 80
    model: Any = regard.load(tmp_path / "run")
    told = json.loads((model.folder / "config.json").read_text())
    assert (told["model_type"], told["architectures"]) == ("regard-recurrent", ["RecurrentForSequenceClassification"])
    model.save(tmp_path / "again")
    again: Any = regard.load(tmp_path / "again")
    assert again.task == "classify"
    assert again.run(texts()) == model.run(texts())
    assert again.embed(texts()).shape == (9, 24)


def test_attention_is_traced(tmp_path: Path) -> None:
    start(recipe(lay_out(tmp_path), SCRATCH.format("attention"), 3), quiet=True)
    model: Any = regard.load(tmp_path / "run")
    trace = model.trace("w0 w1 w2", prove=True)
    assert trace.sites == ["pooling"]
    weights = trace.weights("pooling", 0)
    rows, columns = trace.labels("pooling")
    assert weights.shape == (1, len(columns)) and rows == [trace.answer] == [model.run("w0 w1 w2").label]
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5)
    mixed, used = trace.proof("pooling")
    torch.testing.assert_close(mixed, used, atol=1e-5, rtol=0)
    assert trace.explore(tmp_path / "page.html").is_file()


def test_the_self_attention_of_an_lstmn_is_traced(tmp_path: Path) -> None:
    back = SCRATCH.format("mean") + '\ncell = "lstmn"\nbidirectional = false'
    start(recipe(lay_out(tmp_path), back, 2), quiet=True)
    trace = regard.load(tmp_path / "run").trace("w0 w1 w2")
    past = "encoder.forwards.0.layers.0.past"
    assert trace.sites == [past]  # not the mean, whose weights are equal
    rows, columns = trace.labels(past)
    assert trace.weights(past, 0).shape == (len(rows), len(columns))
    assert trace.explore(str(tmp_path / "page.html")).is_file()


@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_a_resumed_run_equals_an_uninterrupted_one(pooling: str, tmp_path: Path) -> None:
    options = ("train.ema_decay=0.8", "train.layer_decay=0.7", "train.eval_steps=100")
    goes_on_to_the_same_bits(lay_out(tmp_path), SCRATCH.format(pooling), *options)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"width": 23}, "width 23 should be even for two directions"),
        ({"cell": "lstmn"}, "set bidirectional = false"),
        ({"pooling": "max"}, r"model\.pooling = 'max' is not possible"),
    ],
)
def test_inputs_that_do_not_fit_are_errors(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        configure({"family": "recurrent", **fields}, vocabulary=WORDS)
