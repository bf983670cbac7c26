"""An encoder is made into one that tells labels: from nothing, from hidden words, with adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_classify import lay_out, recipe, texts
from test_encoder_model import folder

import regard
from regard.models.classifier import Classifier
from regard.models.heads import MaskedWords, Pretraining
from regard.tasks import build
from regard.training.session import prepare_network, start

SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 32\ndropout = 0.0'


def test_from_nothing_it_learns_and_its_folder_opens(tmp_path: Path) -> None:
    """The tokenizer marks where a text begins: the label is told from there."""
    often = [f"train.{name}=120" for name in ("eval_steps", "save_steps")]
    options = recipe(lay_out(tmp_path), SCRATCH, 120, "train.learning_rate=2e-3", *often)
    start(options, quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert json.loads((model.folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    encoded = model.vocabulary.target.inner.encode("w0 w1").ids
    assert (encoded[0], encoded[-1]) == (model.vocabulary.target.begin, model.vocabulary.target.end)
    assert [answer.label for answer in model.run(texts())]
    assert json.loads((tmp_path / "run/best.json").read_text())["score"] > 0.5


@pytest.mark.parametrize("head", [MaskedWords, Pretraining])
def test_what_found_hidden_words_tells_labels(head: Any, tmp_path: Path) -> None:
    """Its body is taken, with the pooler it was trained with if it has one, and its tokenizer as it is."""
    place = folder(tmp_path, head, pooler=head is Pretraining)
    options = recipe(lay_out(tmp_path), f'from = "{place}"', 3)
    loaded = prepare_network(options)
    network: Any = loaded.network
    assert isinstance(network, Classifier) and not hasattr(network, "words")
    before: Any = regard.load(place).network
    assert torch.equal(network.body.embed.table.weight, before.body.embed.table.weight)
    if head is Pretraining:
        assert torch.equal(network.body.pooler.dense.weight, before.body.pooler.dense.weight)
    pair = loaded.vocabulary.target.inner.encode("hello", "the quotes")
    assert {*pair.type_ids} == {0, 1}
    task: Any = build(options, loaded.vocabulary, network)
    loss = task.loss(network, next(task.batches(0, 0, 1)))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("head", [MaskedWords, Pretraining])
def test_an_adapter_of_an_encoder_is_written_and_added_again(head: Any, tmp_path: Path) -> None:
    """With the pooler, which is trained whole; what pre-training left in the base is not in the way."""
    place = folder(tmp_path, head, pooler=head is Pretraining)
    options = recipe(lay_out(tmp_path), f'from = "{place}"\nlora_rank = 2\nlora_targets = "query value"', 3)
    start(options, quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert isinstance(model.network, Classifier)
    said = json.loads((tmp_path / "run/checkpoint-3/adapter_config.json").read_text())
    assert {*said["modules_to_save"]} == {"bert.pooler.dense", "classifier"}
    before: Any = regard.load(place).network
    assert torch.equal(model.network.body.embed.table.weight, before.body.embed.table.weight)
    assert len(model.run(texts())) == 9
