"""One layout for a backbone with a head: encoders and language models, published and ours."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change, retensor, vocabulary

from regard.errors import UserError
from regard.interop.folder import LAYOUTS, load, save
from regard.interop.heads import HeadedLayout
from regard.interop.hf_module import HFModule
from regard.models.heads.mlm import Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier
from regard.models.registry import FAMILIES, build

TOKENS = 53
BODIES: dict[str, dict[str, Any]] = {
    "bert": {"family": "bert", "width": 22, "heads": 2, "depth": 2, "max_positions": 17},
    "regard-bert": {"family": "bert", "width": 22, "heads": 2, "depth": 2, "max_positions": 17, "token_types": 0},
    "gpt2": {"family": "gpt", "width": 22, "heads": 2, "depth": 2, "max_positions": 17},
    "regard-gpt": {"family": "gpt", "width": 22, "heads": 2, "depth": 2, "max_positions": 17, "bias": False},
    "llama": {"family": "llama", "width": 30, "heads": 3, "depth": 2, "max_positions": 17},
}


def classifier(model_type: str) -> Classifier:
    return Classifier(build(BODIES[model_type], vocabulary=TOKENS), ["x", "y", "z"]).drop_lm_head().eval()


def logits(network: Any) -> torch.Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        return HFModule(network)(input_ids=torch.randint(0, TOKENS, (3, 7))).logits


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def test_one_layout_serves_the_heads_of_all_families() -> None:
    for model_type, layout in LAYOUTS.items():
        assert isinstance(layout, HeadedLayout) != FAMILIES[layout.family].is_encoder_decoder, model_type


@pytest.mark.parametrize("model_type", BODIES)
def test_a_classifier_of_any_family_is_saved_and_loaded(model_type: str, tmp_path: Path) -> None:
    network = classifier(model_type)
    save(tmp_path, network, vocabulary(TOKENS), {})
    config = config_of(tmp_path)
    assert config["model_type"] == model_type
    assert config["architectures"][0].endswith("ForSequenceClassification")
    assert config["id2label"] == {"0": "x", "1": "y", "2": "z"}
    loaded = load(tmp_path)
    assert loaded.network.task == "classify" and torch.equal(logits(loaded.network), logits(network))


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "regard-gpt", "llama"])
def test_the_tensors_show_a_head_that_the_config_does_not_name(model_type: str, tmp_path: Path) -> None:
    network = classifier(model_type)
    save(tmp_path, network, vocabulary(TOKENS), {})
    change(tmp_path, architectures=None)
    assert torch.equal(logits(load(tmp_path).network), logits(network))


@pytest.mark.parametrize(
    ("model_type", "name", "width"),
    [("bert", "cls.predictions.transform.dense.weight", 22), ("llama", "lm_head.weight", 30)],
)
def test_what_pretraining_left_in_a_classifiers_file_is_ignored(
    model_type: str, name: str, width: int, tmp_path: Path
) -> None:
    network = classifier(model_type)
    save(tmp_path, network, vocabulary(TOKENS), {})
    retensor(tmp_path, **{name: torch.ones(TOKENS, width)})
    assert torch.equal(logits(load(tmp_path).network), logits(network))
    retensor(tmp_path, **{"other.weight": torch.ones(3)})
    with pytest.raises(UserError, match=r"unexpected: other\.weight"):
        load(tmp_path)


def test_keys_of_a_former_head_are_not_kept(tmp_path: Path) -> None:
    body: Any = build(BODIES["bert"] | {"pooler": False}, vocabulary=TOKENS)
    network = SpanClassifier(body, True)
    save(tmp_path / "a", network, vocabulary(TOKENS), {})
    assert config_of(tmp_path / "a")["no_answer"] is True
    loaded: Any = load(tmp_path / "a")
    loaded.network.allows_no_answer = False
    save(tmp_path / "b", loaded.network, loaded.processor, {}, config=loaded.config)
    assert "no_answer" not in config_of(tmp_path / "b")


def test_a_head_that_no_published_class_has_is_saved_as_ours(tmp_path: Path) -> None:
    """Pairs without a pooler are compared by layers of our own."""
    body: Any = build(BODIES["bert"] | {"pooler": False}, vocabulary=TOKENS)
    network: Any = Pretraining(body).eval()
    save(tmp_path, network, vocabulary(TOKENS), {})
    assert config_of(tmp_path)["model_type"] == "regard-bert"
    ids = torch.randint(0, TOKENS, (3, 7))
    with torch.no_grad():
        expected, found = (HFModule(each)(input_ids=ids) for each in (network, load(tmp_path).network))
    assert torch.equal(found.prediction_logits, expected.prediction_logits)
    assert torch.equal(found.seq_relationship_logits, expected.seq_relationship_logits)


@pytest.mark.parametrize(
    ("model_type", "architecture"), [("gpt2", "GPT2ForTokenClassification"), ("bert", "BertForMultipleChoice")]
)
def test_an_unknown_head_is_refused_with_those_that_are_known(
    model_type: str, architecture: str, tmp_path: Path
) -> None:
    save(tmp_path, classifier(model_type), vocabulary(TOKENS), {})
    change(tmp_path, architectures=[architecture])
    with pytest.raises(UserError, match=rf"config\.json: architectures = .*{architecture}.*ForSequenceClassification"):
        load(tmp_path)
