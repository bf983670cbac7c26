"""An encoder is made into one that tells labels: from nothing, from hidden words, with adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_classify import lay_out, recipe, texts
from test_encoder_model import folder

import regard
from regard.errors import UserError
from regard.inputs.batch import Sequences
from regard.interop.sentence import Pooling, write_pooling
from regard.models.classifier import Classifier
from regard.models.heads import MaskedWords, Pretraining
from regard.tasks import build
from regard.training.session import prepare_network, resume, start

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


def sentence_folder(place: Path, kind: str = "mean", **fields: Any) -> Path:
    """A small BERT whose folder says how its texts become vectors."""
    made = folder(place, **fields)
    write_pooling(made, Pooling(kind), 22)
    return made


def trained(place: Path, model: str, steps: int = 3, *overrides: str) -> Any:
    start(recipe(lay_out(place), model, steps, *overrides), quiet=True)
    return regard.load(place / "run")


def test_what_was_trained_to_be_averaged_tells_labels_from_the_mean(tmp_path: Path) -> None:
    """Its [CLS] was never asked for anything. Others would look for a pooler: they are told of another architecture."""
    model = trained(tmp_path, f'from = "{sentence_folder(tmp_path)}"')
    network, said = model.network, json.loads((model.folder / "config.json").read_text())
    assert network.averaged and network.body.pooler is None
    assert said["architectures"] == ["BertForMeanClassification"] and "transformers" not in card(model)
    assert "pooling = 'mean'" in (tmp_path / "run/recipe.toml").read_text().replace('"', "'")
    names = load_file(model.folder / "model.safetensors")
    assert not [name for name in names if "pooler" in name or name.startswith("classifier")]
    text = texts()[0]
    ids = torch.tensor([model.vocabulary.target.inner.encode(text).ids])
    with torch.no_grad():
        states = network.encode(Sequences(ids, torch.tensor([ids.size(1)])))
        expected = network.head(states[0].mean(0)).softmax(-1).tolist()
    answer = model.run(text)
    assert [answer.scores[label] for label in network.labels] == pytest.approx(expected, abs=1e-5)
    trace = model.trace(text)
    weights = trace.weights("pooling")
    assert torch.allclose(torch.as_tensor(weights), torch.full(weights.shape, 1 / ids.size(1)))


def card(model: Any) -> str:
    return (model.folder / "README.md").read_text()


@pytest.mark.parametrize(("kind", "said"), [("mean", "cls"), ("cls", ""), ("max", "")])
def test_labels_are_told_from_the_first_state_where_that_is_said(kind: str, said: str, tmp_path: Path) -> None:
    line = f'\npooling = "{said}"' if said else ""
    model = trained(tmp_path, f'from = "{sentence_folder(tmp_path, kind)}"{line}')
    assert not model.network.averaged and model.network.body.pooler is not None


def test_any_encoder_is_averaged_where_that_is_said(tmp_path: Path) -> None:
    model = trained(tmp_path, f'from = "{folder(tmp_path)}"\npooling = "mean"')
    assert model.network.averaged
    with pytest.raises(UserError, match="tells labels from the mean"):
        start(recipe(tmp_path, f'from = "{model.folder}"\npooling = "cls"', 3, f"output={tmp_path}/again"), quiet=True)
    again = start(recipe(tmp_path, f'from = "{model.folder}"', 3, f"output={tmp_path}/again"), quiet=True)
    assert again.status == "finished"


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.pooling = .max. is unknown; possible: cls, mean"):
        recipe(lay_out(tmp_path), 'from = "somewhere"\npooling = "max"', 3)


def test_averaged_labels_are_learnt_by_adapters_and_gone_on_with(tmp_path: Path) -> None:
    model = f'from = "{sentence_folder(tmp_path)}"\nlora_rank = 2\nlora_targets = "query value"'
    found = trained(tmp_path, model, 4, "train.save_steps=2")
    said = json.loads((tmp_path / "run/checkpoint-4/adapter_config.json").read_text())
    assert found.network.averaged and said["modules_to_save"] == ["head"]
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=6"])
    assert regard.load(tmp_path / "run").network.averaged


def test_documents_are_averaged_too(tmp_path: Path) -> None:
    place = sentence_folder(tmp_path)
    model = trained(tmp_path, f'from = "{place}"', 3, "data.segment=10", "data.stride=6")
    assert model.network.averaged and model.network.segment == 10
    said = json.loads((model.folder / "config.json").read_text())
    assert said["architectures"] == ["BertForDocumentClassification"] and said["segment_pooling"] == "mean"
    model.save(tmp_path / "saved")
    (tmp_path / "saved/config.json").write_text(json.dumps(said | {"segment_pooling": "most"}))
    with pytest.raises(UserError, match="segment_pooling = 'most' is unknown"):
        regard.load(tmp_path / "saved")
