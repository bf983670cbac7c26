"""Encoders of others compute here as they did there, with every head, and ours open there."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import alike, change, retensor, vocabulary
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import UserError
from regard.interop.folder import load, save
from regard.interop.hf_module import HFModule
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import build

TOKENS = 53
ROBERTAS = ("roberta", "camembert")
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 29},
    "roberta": {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 29},
    "camembert": {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 29},
    "distilbert": {"dim": 22, "n_heads": 2, "n_layers": 3, "hidden_dim": 29},
    "albert": {
        "hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 29,
        "embedding_size": 13,
    },
}  # fmt: skip
HEADS = {
    "Model": "AutoModel",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}
ODD: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{
        f"{kind} {head}": (kind, head, {})
        for kind in SMALL
        for head in HEADS
        if head != "ForPreTraining" or kind in ("bert", "albert")
    },
    "three segments": ("bert", "Model", {"type_vocab_size": 3}),
    "untied": ("bert", "ForMaskedLM", {"tie_word_embeddings": False}),
    "untied, both": ("bert", "ForPreTraining", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    "roberta, untied": ("roberta", "ForMaskedLM", {"tie_word_embeddings": False}),
    "distilbert, untied": ("distilbert", "ForMaskedLM", {"tie_word_embeddings": False, "activation": "relu"}),
    "albert, untied": ("albert", "ForMaskedLM", {"tie_word_embeddings": False}),
    "epsilon": ("bert", "ForMaskedLM", {"layer_norm_eps": 0.03}),
    **{f"bert, {name}": ("bert", "ForMaskedLM", {"hidden_act": name}) for name in ("relu", "gelu_new", "silu")},
    "roberta, relu": ("roberta", "ForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 0.03}),
    "roberta, other padding": ("roberta", "Model", {"pad_token_id": 5, "type_vocab_size": 1}),
    "roberta, padding first": ("roberta", "ForTokenClassification", {"pad_token_id": 0}),
    "albert, groups": ("albert", "ForMaskedLM", {"num_hidden_groups": 2, "inner_group_num": 3, "num_hidden_layers": 5}),
    "albert, as wide": ("albert", "Model", {"embedding_size": 22, "num_hidden_groups": 3, "hidden_act": "gelu"}),
    "regression": ("bert", "ForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "regression, unsaid": ("roberta", "ForSequenceClassification", {"num_labels": 1}),
    "several labels": (
        "distilbert",
        "ForSequenceClassification",
        {"num_labels": 5, "problem_type": "multi_label_classification"},
    ),
    "named labels": (
        "albert",
        "ForSequenceClassification",
        {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}},
    ),
    "tags": (
        "bert",
        "ForTokenClassification",
        {"id2label": {0: "O", 1: "B-x", 2: "I-x"}, "label2id": {"O": 0, "B-x": 1, "I-x": 2}},
    ),
}


@torch.no_grad()
def reference(kind: str, head: str, **fields: Any) -> Any:
    """transformers' model with random weights, also where a new one has zeros or ones."""
    import transformers

    sizes = {"vocab_size": TOKENS, "max_position_embeddings": 41, "pad_token_id": 1 if kind in ROBERTAS else 0}
    sizes |= {"initializer_range": 0.3, **SMALL[kind], **fields}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = getattr(transformers, HEADS[head]).from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name.lower() or "bias" in name:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def write(model: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        model.save_pretrained(folder)
    vocabulary(TOKENS).save(folder)
    return folder


def opened(folder: Path, head: str) -> Any:
    """In transformers, nothing missing and nothing unexpected."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, report = getattr(transformers, HEADS[head]).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def rows(segments: int) -> dict[str, Tensor]:
    """Ragged rows with garbage in the padding, which is on the right."""
    lengths = torch.tensor([17, 1, 9, 14])
    places = torch.arange(17).expand(4, 17)
    types = torch.randint(0, segments, (4, 17)) if segments else torch.zeros(4, 17, dtype=torch.int64)
    return {
        "input_ids": torch.randint(7, TOKENS, (4, 17)),
        "attention_mask": (places < lengths[:, None]).long(),
        "token_type_ids": types,
        "position_ids": places,
    }


def from_the_left(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same rows with their padding before them, and positions counted from the first real token."""
    gaps = (17 - inputs["attention_mask"].sum(1)).tolist()
    turned = {
        name: torch.stack([row.roll(gap) for row, gap in zip(each, gaps, strict=True)]) for name, each in inputs.items()
    }
    return turned | {"position_ids": (turned["attention_mask"].cumsum(1) - 1).clamp(min=0)}


def asked(network: Any, inputs: dict[str, Tensor]) -> Any:
    return HFModule(network)(**{name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")})


NAMES = ("logits", "last_hidden_state", "pooler_output", "prediction_logits", "start_logits", "end_logits")


@torch.no_grad()
def told(model: Any, inputs: dict[str, Tensor], kind: str, first: int = 0) -> dict[str, Tensor]:
    given = dict(inputs)
    given["position_ids"] = given["position_ids"] + first
    if kind == "distilbert":
        given.pop("token_type_ids")
    found = model(**given)
    values = {name: getattr(found, name, None) for name in NAMES}
    values["seq_relationship_logits"] = getattr(found, "seq_relationship_logits", getattr(found, "sop_logits", None))
    return {name: value for name, value in values.items() if value is not None}


def agree(found: Any, expected: dict[str, Tensor], mask: Tensor) -> None:
    """Outputs equal those of transformers at every position."""
    assert expected
    for name, value in expected.items():
        ours = getattr(found, name)
        per_place = value.shape[:2] == mask.shape
        assert alike(ours[mask.bool()] if per_place else ours, value[mask.bool()] if per_place else value), name


def places_of(model: Any, kind: str) -> int:
    return model.config.pad_token_id + 1 if kind in ROBERTAS else 0


@pytest.mark.parametrize(("kind", "head", "fields"), ODD.values(), ids=ODD)
@torch.no_grad()
def test_they_compute_as_transformers_does_in_both_directions(
    kind: str, head: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = reference(kind, head, **fields)
    theirs, ours = write(model, tmp_path / "theirs"), tmp_path / "ours"
    loaded = load(theirs)
    segments = getattr(model.config, "type_vocab_size", 0) if kind != "distilbert" else 0
    first, right = places_of(model, kind), rows(segments)
    left, expected = from_the_left(right), told(model, right, kind, first)
    agree(asked(loaded.network, right), expected, right["attention_mask"])
    of_texts = {name: value for name, value in expected.items() if value.shape[:2] != (4, 17)}  # theirs read padding
    agree(asked(loaded.network, left), told(model, left, kind, first) | of_texts, left["attention_mask"])

    save(ours, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    again = told(opened(ours, head), right, kind, first)
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    before, after = load_file(theirs / "model.safetensors"), load_file(ours / "model.safetensors")
    assert before.keys() == after.keys()
    unused = {"cls.predictions.bias", "lm_head.bias", "predictions.bias"} if "tie_word_embeddings" in fields else set()
    assert all(torch.equal(before[name], after[name]) for name in before if name not in unused)
    assert json.loads((ours / "config.json").read_text()).items() >= loaded.config.items()


BERT = {"family": "bert", "width": 22, "heads": 2, "depth": 3, "max_positions": 41, "epsilon": 0.02}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", BERT),
    "bert, all fields": ("bert", {**BERT, "feedforward": 29, "token_types": 3, "tied": False, "activation": "swish"}),
    "roberta": (
        "roberta",
        {**BERT, "position_offset": 2, "token_types": 1, "output_activation": "gelu", "activation": "relu"},
    ),
    "roberta, gelu throughout": ("roberta", {**BERT, "position_offset": 1}),
    "distilbert": (
        "distilbert",
        {**BERT, "token_types": 0, "pooler": False, "pooler_activation": "relu", "epsilon": 1e-12},
    ),
    "albert": ("albert", {**BERT, "embedding_width": 13, "hidden_groups": 2, "inner_group_size": 2}),
    "no segments but a pooler": ("regard-bert", {**BERT, "token_types": 0}),
    "shared blocks, a wide table": ("regard-bert", {**BERT, "hidden_groups": 1}),
    "another output": ("regard-bert", {**BERT, "output_activation": "relu"}),
}
MADE: dict[str, Any] = {
    "Model": lambda body: body,
    "ForMaskedLM": MaskedLM,
    "ForSequenceClassification": lambda body: Classifier(body, ["x", "y", "z"]),
    "ForTokenClassification": lambda body: TokenClassifier(body, ["x", "y", "z"]),
    "ForQuestionAnswering": SpanClassifier,
}


def goes_out_and_in(network: Any, kind: str, head: str, place: Path) -> None:
    """Saved and loaded it is the same; saved again, to the byte; and transformers opens what is its own mathematics."""
    for parameter in network.parameters():
        parameter.normal_(std=0.3)
    save(place / "first", network, vocabulary(TOKENS), {})
    assert json.loads((place / "first/config.json").read_text())["model_type"] == kind
    loaded, inputs = load(place / "first"), rows(0)
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    expected = vars(HFModule(network)(**given))
    for name, value in vars(HFModule(loaded.network)(**given)).items():
        assert value is expected[name] or torch.equal(value, expected[name]), name
    save(place / "second", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    for path in (place / "first").iterdir():
        assert path.read_bytes() == (place / "second" / path.name).read_bytes(), path.name
    if not kind.startswith("regard-"):
        theirs = opened(place / "first", head)
        agree(HFModule(network)(**given), told(theirs, inputs, kind, places_of(theirs, kind)), inputs["attention_mask"])


@pytest.mark.parametrize("head", MADE)
@pytest.mark.parametrize(("kind", "model"), OURS.values(), ids=OURS)
@torch.no_grad()
def test_a_network_of_ours_survives_save_and_load(kind: str, model: dict[str, Any], head: str, tmp_path: Path) -> None:
    """Under a published name where it is that mathematics, which transformers then opens; saved again, to the byte."""
    unused_pooler = head not in ("Model", "ForSequenceClassification")
    body = build(model | ({"pooler": False} if unused_pooler else {}), vocabulary=TOKENS)
    network = MADE[head](body).eval()
    goes_out_and_in(network, kind, head, tmp_path)


@torch.no_grad()
def test_old_files_are_read(tmp_path: Path) -> None:
    """Norms as gamma and beta, position buffers, an untied decoder, and neither head nor model type."""
    model, inputs = reference("bert", "ForPreTraining"), rows(2)
    write(model, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in found.items():
        for new, before in old.items():
            name = name.replace(new, before)
        renamed[name] = tensor
    renamed["bert.embeddings.position_ids"] = torch.arange(41)[None]
    renamed["cls.predictions.decoder.weight"] = found["bert.embeddings.word_embeddings.weight"].clone()
    renamed["cls.predictions.decoder.bias"] = found["cls.predictions.bias"].clone()
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model_type.*albert.*model_type='bert'"):
        load(tmp_path)
    loaded = load(tmp_path, model_type="bert")
    assert isinstance(loaded.network, Pretraining)
    agree(asked(loaded.network, inputs), told(model, inputs, "bert"), inputs["attention_mask"])


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification", "Model"])
@torch.no_grad()
def test_facts_missing_in_the_config_are_inferred_from_the_weights(head: str, tmp_path: Path) -> None:
    model = reference("bert", head)
    change(write(model, tmp_path), architectures=None)
    network, inputs = load(tmp_path).network, rows(2)
    agree(asked(network, inputs), told(model, inputs, "bert"), inputs["attention_mask"])


def test_a_pooler_that_a_head_does_not_need_is_kept_or_not_missed(tmp_path: Path) -> None:
    write(reference("albert", "ForMaskedLM"), tmp_path / "a")
    retensor(tmp_path / "a", **{"albert.pooler.weight": torch.ones(22, 22), "albert.pooler.bias": torch.ones(22)})
    loaded = load(tmp_path / "a")
    save(tmp_path / "b", loaded.network, loaded.processor, {}, config=loaded.config)
    before, after = load_file(tmp_path / "a/model.safetensors"), load_file(tmp_path / "b/model.safetensors")
    assert before.keys() == after.keys()
    write(reference("bert", "Model"), tmp_path / "c")
    retensor(tmp_path / "c", **{"pooler.dense.weight": None, "pooler.dense.bias": None})
    network: Any = load(tmp_path / "c").network
    assert network.pooler is None


REFUSED = {
    "decoder": ({"is_decoder": True}, "is_decoder"),
    "relative": ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    "head": ({"architectures": ["BertForMultipleChoice"]}, "BertForMaskedLM"),
    "problem": ({"architectures": ["BertForSequenceClassification"], "problem_type": "ranking"}, "regression"),
    "act": ({"hidden_act": "mish"}, "hidden_act"),
    "another kind": ({"model_type": "bart"}, "bert"),
    "endless sets": (
        {"model_type": "albert", "inner_group_num": 1 << 20},
        r"inner_group_size = 1048576 should be at most",
    ),
    "many turns": ({"model_type": "albert", "inner_group_num": 700, "num_hidden_layers": 900}, "630000 blocks"),
}


@pytest.mark.parametrize(("fields", "word"), REFUSED.values(), ids=REFUSED)
def test_config_keys_that_change_the_computation_are_errors_by_name(
    fields: dict[str, Any], word: str, tmp_path: Path
) -> None:
    change(write(reference("bert", "Model"), tmp_path), **fields)
    with pytest.raises(UserError, match=word):
        load(tmp_path)


def test_a_folder_without_a_tokenizer_is_for_work_on_ids(tmp_path: Path) -> None:
    write(reference("bert", "Model"), tmp_path / "a")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "a" / name).unlink()
    loaded = load(tmp_path / "a")
    with pytest.raises(UserError, match="no tokenizer"):
        loaded.processor.target.encode("a text")
    save(tmp_path / "b", loaded.network, loaded.processor, {}, config=loaded.config)
    assert not (tmp_path / "b/tokenizer.json").exists()
