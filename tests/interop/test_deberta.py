"""DeBERTa of both versions computes here as in transformers, with every head, and ours opens there."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import alike, change, vocabulary
from safetensors.torch import load_file, save_file

from regard.errors import UserError
from regard.interop.folder import load, save
from regard.layers.inputs import pad
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from tests.interop.test_bert import (
    HEADS,
    MADE,
    TOKENS,
    agree,
    asked,
    from_the_left,
    goes_out_and_in,
    opened,
    rows,
    told,
)

HEADED = [head for head in HEADS if head != "ForPreTraining"]
SMALL = {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 29}
BOTH = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
V3 = {**BOTH, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
CONVOLVED = {**V3, "conv_kernel_size": 3, "conv_act": "gelu"}
V1, V2 = "deberta", "deberta-v2"
ODD: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"v1 {head}": (V1, head, BOTH) for head in HEADED},
    **{f"v3 {head}": (V2, head, V3) for head in HEADED},
    "v1, absolute alone": (V1, "Model", {}),
    "v1, absolute as well": (V1, "ForMaskedLM", {**BOTH, "position_biased_input": True}),
    "v1, content to position": (V1, "Model", {**BOTH, "pos_att_type": "c2p"}),
    "v1, position to content": (V1, "ForMaskedLM", {**BOTH, "pos_att_type": ["p2c"]}),
    "v1, reach": (V1, "Model", {**BOTH, "max_relative_positions": 5}),
    "v1, segments": (V1, "Model", {**BOTH, "type_vocab_size": 3}),
    "v1, narrow": (V1, "ForMaskedLM", {**BOTH, "embedding_size": 13}),
    "v1, epsilon, relu": (V1, "ForSequenceClassification", {**BOTH, "layer_norm_eps": 0.03, "hidden_act": "relu"}),
    "v1, another pooler": (V1, "ForSequenceClassification", {**BOTH, "pooler_hidden_act": "tanh", "num_labels": 4}),
    "v1, untied": (V1, "ForMaskedLM", {**BOTH, "tie_word_embeddings": False}),
    "v2, absolute alone": (V2, "Model", {}),
    "v2, own projections": (V2, "ForMaskedLM", {**V3, "share_att_key": False}),
    "v2, content to position": (V2, "Model", {**V3, "pos_att_type": "c2p"}),
    "v2, position to content": (V2, "Model", {**V3, "pos_att_type": "p2c"}),
    "v2, own, content to position": (V2, "Model", {**V3, "pos_att_type": "c2p", "share_att_key": False}),
    "v2, own, position to content": (V2, "Model", {**V3, "pos_att_type": "p2c", "share_att_key": False}),
    "v2, no norm": (V2, "Model", {**V3, "norm_rel_ebd": "none"}),
    "v2, no buckets": (V2, "Model", {**V3, "position_buckets": -1}),
    "v2, odd buckets": (V2, "Model", {**V3, "position_buckets": 11}),
    "v2, reach": (V2, "Model", {**V3, "max_relative_positions": 9}),
    "v2, no buckets, reach": (V2, "Model", {**V3, "position_buckets": -1, "max_relative_positions": 6}),
    "v2, absolute as well": (V2, "ForTokenClassification", {**V3, "position_biased_input": True}),
    "v2, segments, narrow": (V2, "ForMaskedLM", {**V3, "type_vocab_size": 3, "embedding_size": 13}),
    "v2, wide": (V2, "ForMaskedLM", {**V3, "embedding_size": 31, "position_biased_input": True}),
    "v2, convolution": (V2, "ForMaskedLM", CONVOLVED),
    "v2, convolution, groups": (V2, "Model", {**CONVOLVED, "conv_groups": 2, "conv_kernel_size": 5}),
    "v2, untied": (V2, "ForMaskedLM", {**V3, "tie_word_embeddings": False}),
    "v2, regression": (V2, "ForSequenceClassification", {**V3, "num_labels": 1}),
}  # fmt: skip


@torch.no_grad()
def reference(kind: str, head: str, **fields: Any) -> Any:
    """transformers' model with random weights, also where a new one has zeros or ones."""
    import transformers

    sizes = {"vocab_size": TOKENS, "max_position_embeddings": 41, "initializer_range": 0.3, **SMALL, **fields}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
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


@pytest.mark.parametrize(("kind", "head", "fields"), ODD.values(), ids=ODD)
@torch.no_grad()
def test_it_computes_as_transformers_does_in_both_directions(
    kind: str, head: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = reference(kind, head, **fields)
    theirs, ours = write(model, tmp_path / "theirs"), tmp_path / "ours"
    loaded, right = load(theirs), rows(model.config.type_vocab_size)
    left, expected = from_the_left(right), told(model, right, kind)
    agree(asked(loaded.network, right), expected, right["attention_mask"])
    of_texts = {name: value for name, value in expected.items() if value.shape[:2] != (4, 17)}  # theirs read padding
    agree(asked(loaded.network, left), told(model, left, kind) | of_texts, left["attention_mask"])

    save(ours, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    again = told(opened(ours, head), right, kind)
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    before, after = load_file(theirs / "model.safetensors"), load_file(ours / "model.safetensors")
    assert before.keys() == after.keys()
    unused = {"cls.predictions.bias"} if "tie_word_embeddings" in fields else set()
    assert all(torch.equal(before[name], after[name]) for name in before if name not in unused)
    assert json.loads((ours / "config.json").read_text()).items() >= loaded.config.items()


DEBERTA = {"family": "deberta", "width": 22, "heads": 2, "depth": 3, "max_positions": 41, "epsilon": 0.02}
FIRST = {"share_att_key": False, "norm_rel_embeddings": False, "key_bias": False}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "first": ("deberta", {**DEBERTA, **FIRST}),
    "first, all fields": (
        "deberta",
        {**DEBERTA, **FIRST, "feedforward": 29, "embedding_width": 13, "token_types": 2, "absolute": True, "p2c": False,
         "max_relative_positions": 6, "activation": "relu", "pooler_activation": "tanh"},
    ),
    "first, places alone": ("deberta", {**DEBERTA, **FIRST, "c2p": False, "p2c": False,
                                        "absolute": True}),
    "second": ("deberta-v2", {**DEBERTA, "position_buckets": 6}),
    "second, all fields": (
        "deberta-v2",
        {**DEBERTA, "feedforward": 29, "token_types": 1, "absolute": True, "c2p": False, "max_relative_positions": 9,
         "position_buckets": 8, "share_att_key": False, "norm_rel_embeddings": False, "kernel": 5, "kernel_groups": 2,
         "kernel_activation": "gelu",
         "tied": False},
    ),
    "keys without a bias, shared": ("regard-deberta", {**DEBERTA, "key_bias": False}),
}  # fmt: skip


@pytest.mark.parametrize("head", MADE)
@pytest.mark.parametrize(("kind", "model"), OURS.values(), ids=OURS)
@torch.no_grad()
def test_a_network_of_ours_survives_save_and_load(kind: str, model: dict[str, Any], head: str, tmp_path: Path) -> None:
    """Under a published name where it is that mathematics, which transformers then opens; saved again, to the byte."""
    network = MADE[head](build(model, vocabulary=TOKENS)).eval()
    goes_out_and_in(network, kind, head, tmp_path)


@pytest.mark.parametrize(("kind", "fields"), [(V1, BOTH), (V2, V3), (V2, CONVOLVED)], ids=["v1", "v3", "v2"])
@torch.no_grad()
def test_the_newer_head_is_read_and_written_under_its_legacy_names(
    kind: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """transformers predicts the same tokens with either, and reads the legacy names in every version."""
    model = reference(kind, "ForMaskedLM", **fields, legacy=False)
    loaded, inputs = load(write(model, tmp_path / "theirs")), rows(0)
    expected = told(model, inputs, kind)
    agree(asked(loaded.network, inputs), expected, inputs["attention_mask"])
    save(tmp_path / "ours", loaded.network, loaded.processor, {}, config=loaded.config)
    agree(opened(tmp_path / "ours", "ForMaskedLM")(**inputs), expected, inputs["attention_mask"])
    assert "cls.predictions.bias" in load_file(tmp_path / "ours/model.safetensors")


@torch.no_grad()
def test_files_as_published_are_read(tmp_path: Path) -> None:
    """Without head and `legacy`, terms as one text, and with tensors of pre-training."""
    model, inputs = reference(V2, "ForMaskedLM", **V3, legacy=False), rows(0)
    write(model, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    found["deberta.embeddings.position_embeddings.weight"] = torch.randn(41, 22)
    found["mask_predictions.dense.weight"] = torch.randn(22, 22)
    save_file(found, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("architectures", "legacy", "tie_word_embeddings"):
        config.pop(key)
    (tmp_path / "config.json").write_text(json.dumps(config | {"pos_att_type": "p2c|c2p", "attention_head_size": 11}))
    network = load(tmp_path).network
    assert isinstance(network, MaskedLM)
    agree(asked(network, inputs), told(model, inputs, V2), inputs["attention_mask"])


@torch.no_grad()
def test_a_classifier_with_a_masked_lm_head_loads(tmp_path: Path) -> None:
    """As after fine-tuning: the masked LM head is still next to the classifier."""
    model, inputs = reference(V1, "ForSequenceClassification", **BOTH), rows(0)
    write(model, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    save_file(found | {"lm_predictions.lm_head.bias": torch.ones(TOKENS)}, tmp_path / "model.safetensors")
    logits = asked(load(tmp_path).network, inputs).logits
    assert alike(logits, told(model, inputs, V1)["logits"])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "talking heads": (V1, {"talking_head": True}, "talking_head"),
    "unknown term": (V1, {"pos_att_type": ["c2p", "p2p"]}, "p2p"),
    "a term twice": (V2, {"pos_att_type": "c2p|c2p"}, "repeated"),
    "terms without distances": (V1, {"relative_attention": False}, "relative_attention"),
    "distances without terms": (V2, {"pos_att_type": None}, "pos_att_type"),
    "head size": (V2, {"attention_head_size": 7}, "attention_head_size"),
    "pooler size": (V1, {"pooler_hidden_size": 23}, "pooler_hidden_size"),
    "norm": (V2, {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd"),
    "even kernel": (V2, {"conv_kernel_size": 4}, "kernel"),
    "too many buckets": (V2, {"position_buckets": 90}, "buckets"),
    "head": (
        V2,
        {"architectures": ["DebertaV2ForMultipleChoice"]},
        "expected one of: DebertaV2Model, DebertaV2For",
    ),
}


@pytest.mark.parametrize(("kind", "fields", "word"), REFUSED.values(), ids=REFUSED)
def test_config_keys_that_change_the_computation_are_errors_by_name(
    kind: str, fields: dict[str, Any], word: str, tmp_path: Path
) -> None:
    change(write(reference(kind, "Model", **(BOTH if kind == V1 else V3)), tmp_path), **fields)
    with pytest.raises(UserError, match=word):
        load(tmp_path)


@torch.no_grad()
def test_the_next_sentence_head_is_kept_with_berts_names(tmp_path: Path) -> None:
    """No published class has it: it is for those that are trained here; others read their words, and their labels."""
    body: Any = build({**DEBERTA, "token_types": 2}, vocabulary=TOKENS)
    network: Any = Pretraining(body).eval()
    save(tmp_path / "both", network, vocabulary(TOKENS), {})
    again: Any = load(tmp_path / "both").network
    assert type(again) is Pretraining and again.state_dict().keys() == network.state_dict().keys()
    assert all(torch.equal(each, again.state_dict()[name]) for name, each in network.state_dict().items())
    tokens = torch.randint(5, TOKENS, (2, 9))
    text = pad(tokens.tolist(), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "both").eval()(tokens).logits
    theirs = theirs.flatten(0, 1)
    ours = again(text, torch.ones(2, 9, dtype=torch.bool)).mlm
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    labels = Classifier(again.body, ("a", "b", "c")).eval()
    save(tmp_path / "labels", labels, vocabulary(TOKENS), {})
    theirs = opened(tmp_path / "labels", "ForSequenceClassification")(tokens).logits
    assert (labels(text) - theirs).abs().max() <= 1e-5 * theirs.abs().max()
