"""Encoders are trained as classifiers: from scratch, from a masked LM, with adapters."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.interop.folder import save
from regard.interop.sentence_transformers import Pooling, write_pooling
from regard.layers.inputs import TokenBatch
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.tasks.registry import build
from regard.training.build import prepare_network, resume, start
from tests.tasks.classify.test_task import lay_out, recipe, texts
from tests.test_model import folder

SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 32\ndropout = 0.0'


def test_it_trains_from_scratch_and_its_folder_opens(tmp_path: Path) -> None:
    """The tokenizer puts a token before a text: it is classified."""
    often = [f"train.{name}=120" for name in ("eval_steps", "save_steps")]
    options = recipe(lay_out(tmp_path), SCRATCH, 120, "train.learning_rate=2e-3", *often)
    start(options, quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert json.loads((model.folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    encoded = model.processor.target.inner.encode("w0 w1").ids
    assert (encoded[0], encoded[-1]) == (model.processor.target.begin, model.processor.target.end)
    assert [answer.label for answer in model.run(texts())]
    assert json.loads((tmp_path / "run/best.json").read_text())["score"] > 0.5


@pytest.mark.parametrize("head", [MaskedLM, Pretraining])
def test_a_masked_lm_is_fine_tuned_as_a_classifier(head: Any, tmp_path: Path) -> None:
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
    pair = loaded.processor.target.inner.encode("hello", "the quotes")
    assert {*pair.type_ids} == {0, 1}
    task: Any = build(options, loaded.processor, network)
    loss = task.loss(network, next(task.batches(0, 0, 1)))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("head", [MaskedLM, Pretraining])
def test_an_adapter_of_an_encoder_is_written_and_added_again(head: Any, tmp_path: Path) -> None:
    """With the pooler, which is trained without an adapter; other tensors of pre-training in the base are ignored."""
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
    """A small BERT whose folder defines its pooling."""
    made = folder(place, **fields)
    write_pooling(made, Pooling(kind), 22)
    return made


def trained(place: Path, model: str, steps: int = 3, *overrides: str) -> Any:
    start(recipe(lay_out(place), model, steps, *overrides), quiet=True)
    return regard.load(place / "run")


def test_an_embedding_model_is_fine_tuned_with_mean_pooling(tmp_path: Path) -> None:
    """Its [CLS] was never trained. Other libraries would expect a pooler: the config names another architecture."""
    model = trained(tmp_path, f'from = "{sentence_folder(tmp_path)}"')
    network, said = model.network, json.loads((model.folder / "config.json").read_text())
    assert network.mean_pooled and network.body.pooler is None
    assert said["architectures"] == ["BertForMeanClassification"] and "from_pretrained" not in card(model)
    names = load_file(model.folder / "model.safetensors")
    assert not [name for name in names if "pooler" in name or name.startswith("classifier")]
    for text, answer in zip(texts(), model.run(texts()), strict=True):
        ids = torch.tensor([model.processor.target.inner.encode(text).ids])
        with torch.no_grad():
            states = network.encode(TokenBatch(ids, torch.tensor([ids.size(1)])))
            expected = network.head(states[0].mean(0)).softmax(-1).tolist()
        assert [answer.scores[label] for label in network.labels] == pytest.approx(expected, abs=1e-5)
    assert model.trace(text).sites == [f"encoder.blocks.{layer}.self" for layer in (0, 1)]  # not the mean


def test_other_libraries_refuse_a_head_that_only_regard_has(tmp_path: Path) -> None:
    """They would add a random head. Folders of earlier versions, with the published model_type, still load."""
    transformers = pytest.importorskip("transformers")
    model = trained(tmp_path, f'from = "{sentence_folder(tmp_path)}"')
    with pytest.raises(ValueError, match="regard-classifier-bert"):
        transformers.AutoModelForSequenceClassification.from_pretrained(model.folder)
    assert "train with model.pooling=cls" in card(model)
    before = [each.scores for each in model.run(texts())]
    model.save(tmp_path / "saved")
    path = tmp_path / "saved/config.json"
    path.write_text(path.read_text().replace("regard-classifier-bert", "bert"))
    assert [each.scores for each in regard.load(path.parent).run(texts())] == before


def card(model: Any) -> str:
    return (model.folder / "README.md").read_text()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("family", ["roberta", "distilbert", "albert", "deberta"])
def test_every_family_is_averaged_saved_and_opened(family: str, tmp_path: Path) -> None:
    shapes: dict[str, dict[str, Any]] = {
        "roberta": {"token_types": 1, "position_offset": 2, "output_activation": "gelu"},
        "distilbert": {"token_types": 0, "pooler": False, "pooler_activation": "relu"},
        "albert": {"embedding_width": 8, "hidden_groups": 1},
        "deberta": {"family": "deberta", "max_positions": 29},
    }
    model = trained(tmp_path, f'from = "{sentence_folder(tmp_path, **shapes[family])}"')
    said = json.loads((model.folder / "config.json").read_text())
    assert said["architectures"][0].endswith("ForMeanClassification")
    assert said["model_type"].startswith(f"regard-classifier-{family}")
    again: Any = model.save(tmp_path / "saved") or regard.load(tmp_path / "saved")
    scores = [[[*each.scores.values()] for each in one.run(texts())] for one in (model, again)]
    assert scores[0] == scores[1]
    swift: Any = regard.load(tmp_path / "saved", precision="int8")
    assert [each.score for each in swift.run(texts())] == pytest.approx([max(row) for row in scores[0]], abs=0.05)


def test_the_doctor_measures_what_is_trained(tmp_path: Path) -> None:
    options = recipe(lay_out(tmp_path), f'from = "{sentence_folder(tmp_path)}"', 3)
    assert prepare_network(options).network.mean_pooled  # type: ignore[union-attr]


def test_a_token_outside_the_vocabulary_is_not_a_candidate(tmp_path: Path) -> None:
    place = sentence_folder(tmp_path)
    modules = json.loads((place / "modules.json").read_text())
    (place / "modules.json").write_text(json.dumps([*modules, {"type": "sentence_transformers.models.Dense"}]))
    assert not trained(tmp_path, f'from = "{place}"').network.mean_pooled
    (place / "modules.json").write_text(json.dumps(modules[:1]))
    assert not prepare_network(recipe(tmp_path, f'from = "{place}"', 3)).network.mean_pooled  # type: ignore[union-attr]


def test_a_language_model_is_not_averaged(tmp_path: Path) -> None:
    options = recipe(lay_out(tmp_path), 'family = "gpt"\npreset = "tiny"\nlimit = 32', 3, "tokenizer.kind=words")
    place = tmp_path / "gpt"
    save(place, *prepare_network(replace(options, task="classify"))[:3])
    body: Any = regard.load(place).network.body
    save(place, body, regard.load(place).processor, {})
    write_pooling(place, Pooling("mean"), 22)
    model = trained(tmp_path, f'from = "{place}"')
    assert not model.network.mean_pooled
    with pytest.raises(UserError, match=r"model\.pooling = 'mean' is for encoders such as bert"):
        prepare_network(recipe(tmp_path, f'from = "{place}"\npooling = "mean"', 3))


def test_masked_lm_keeps_the_pooling_of_the_folder(tmp_path: Path) -> None:
    """So that a classifier fine-tuned after continued pre-training has mean pooling, too."""
    place, text = sentence_folder(tmp_path), tmp_path / "own.txt"
    text.write_text("the spaces and quotes\n" * 40)
    train = "[train]\nbatch_size = 2\nmax_steps = 2\nlearning_rate = 1e-3\nsave_steps = 2\neval_steps = 2"
    path = tmp_path / "own.toml"
    path.write_text(f'task = "fill"\noutput = "{tmp_path}/own"\n[data]\ntrain = "{text}"\nmax_length = 12\n'
                    f'[model]\nfrom = "{place}"\n{train}\n')  # fmt: skip
    start(load_recipe(path), quiet=True)
    assert regard.load(tmp_path / "own").pooling == Pooling("mean")  # type: ignore[union-attr]
    assert prepare_network(recipe(lay_out(tmp_path), f'from = "{tmp_path}/own"', 3)).network.mean_pooled  # type: ignore[union-attr]
    with pytest.raises(
        UserError,
        match=r"model\.lora_rank = 2: the model has no masked LM head yet, and an adapter would not keep a new one",
    ):
        prepare_network(load_recipe(path, ["model.lora_rank=2"]))


@pytest.mark.parametrize(("kind", "said"), [("mean", "cls"), ("cls", ""), ("max", "")])
def test_classification_uses_the_cls_token_if_configured(kind: str, said: str, tmp_path: Path) -> None:
    line = f'\npooling = "{said}"' if said else ""
    model = trained(tmp_path, f'from = "{sentence_folder(tmp_path, kind)}"{line}')
    assert not model.network.mean_pooled and model.network.body.pooler is not None


def test_any_encoder_uses_mean_pooling_if_configured(tmp_path: Path) -> None:
    model = trained(tmp_path, f'from = "{folder(tmp_path)}"\npooling = "mean"')
    assert model.network.mean_pooled
    with pytest.raises(UserError, match=r"model\.pooling = 'cls' is for a new head"):
        start(recipe(tmp_path, f'from = "{model.folder}"\npooling = "cls"', 3, f"output={tmp_path}/again"), quiet=True)
    again = start(recipe(tmp_path, f'from = "{model.folder}"', 3, f"output={tmp_path}/again"), quiet=True)
    assert again.status == "finished"


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.pooling = .max. is unknown; expected one of: cls, mean"):
        recipe(lay_out(tmp_path), 'from = "somewhere"\npooling = "max"', 3)


def test_mean_pooling_works_with_adapters_and_resume(tmp_path: Path) -> None:
    model = f'from = "{sentence_folder(tmp_path)}"\nlora_rank = 2\nlora_targets = "query value"'
    found = trained(tmp_path, model, 4, "train.save_steps=2")
    said = json.loads((tmp_path / "run/checkpoint-4/adapter_config.json").read_text())
    assert found.network.mean_pooled and said["modules_to_save"] == ["head"]
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=6"])
    assert regard.load(tmp_path / "run").network.mean_pooled


def test_documents_are_averaged_too(tmp_path: Path) -> None:
    place = sentence_folder(tmp_path)
    model = trained(tmp_path, f'from = "{place}"', 3, "data.segment_length=10", "data.stride=6")
    assert model.network.mean_pooled and model.network.segment == 10
    said = json.loads((model.folder / "config.json").read_text())
    assert said["architectures"] == ["BertForDocumentClassification"] and said["label_pooling"] == "mean"
    model.save(tmp_path / "saved")
    (tmp_path / "saved/config.json").write_text(json.dumps(said | {"label_pooling": "most"}))
    with pytest.raises(UserError, match="label_pooling = 'most' is unknown"):
        regard.load(tmp_path / "saved")


def test_checkpoints_that_transformers_cannot_open_are_reported(tmp_path: Path) -> None:
    for name, said in (("mean", True), ("cls", False)):
        model = trained(tmp_path / name, f'from = "{sentence_folder(tmp_path / name, name)}"')
        told = CliRunner().invoke(app, ["convert", str(model.folder), str(tmp_path / f"{name}-out"), "--json"])
        assert ("note" in json.loads(told.output)) == said
