"""Language models of others compute here as they did there, and ours open there."""

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from checkpoints import alike, change, shard, tokenizer, vocabulary
from language_checkpoints import TOKENS, language_model, logits_of, open_in_transformers, text, write
from safetensors.torch import load_file, save_file

from regard.interop.folder import load, save
from regard.layers.autoregressive import EMPTY
from regard.models.registry import build
from regard.text.vocabulary import Vocabulary

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 700.0,
    "factor": 5.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 23,
}
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2, inner": ("gpt2", {"n_inner": 29}),
    "gpt2, epsilon": ("gpt2", {"layer_norm_epsilon": 0.03}),
    "gpt2, one head": ("gpt2", {"n_embd": 13, "n_head": 1}),
    "gpt2, as many heads as numbers": ("gpt2", {"n_embd": 13, "n_head": 13}),
    "gpt2, scores by depth": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, scores as they are": ("gpt2", {"scale_attn_weights": False}),
    "gpt2, by depth alone": ("gpt2", {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2, upcast": ("gpt2", {"reorder_and_upcast_attn": True, "attn_implementation": "eager"}),
    **{
        f"gpt2, {name}": ("gpt2", {"activation_function": name})
        for name in ("relu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", "silu", "tanh")
    },
    "gpt1": ("openai-gpt", {}),
    "gpt1, untied": ("openai-gpt", {"tie_word_embeddings": False}),
    "gpt1, epsilon": ("openai-gpt", {"layer_norm_epsilon": 0.03}),
    **{f"gpt1, {name}": ("openai-gpt", {"afn": name}) for name in ("gelu", "relu", "silu", "swish")},
    "neo": ("gpt_neo", {}),
    "neo, untied": ("gpt_neo", {"tie_word_embeddings": False}),
    "neo, inner": ("gpt_neo", {"intermediate_size": 29, "layer_norm_epsilon": 0.03}),
    "neo, relu": ("gpt_neo", {"activation_function": "relu"}),
    "neo, all global": ("gpt_neo", {"attention_types": [[["global"], 3]]}),
    "neo, all local": ("gpt_neo", {"attention_types": [[["local"], 3]], "window_size": 1}),
    "neo, two parts": (
        "gpt_neo",
        {"num_layers": 5, "attention_types": [[["global", "local"], 2], [["local"], 1]], "window_size": 7},
    ),
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, grouped": ("llama", {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 2}),
    "llama, one key": ("llama", {"num_key_value_heads": 1}),
    "llama, wide heads": ("llama", {"head_dim": 14}),
    "llama, narrow heads": ("llama", {"head_dim": 6, "num_key_value_heads": 1}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, attention's biases": ("llama", {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 14}),
    "llama, epsilon": ("llama", {"rms_norm_eps": 0.03}),
    "llama, relu": ("llama", {"hidden_act": "relu"}),
    "llama, gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama, base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama, enormous base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 3580165449.0}}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}}),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 26}),
}


@pytest.mark.parametrize(("kind", "fields"), ODD.values(), ids=ODD)
@torch.no_grad()
def test_they_compute_as_transformers_does_in_both_directions(
    kind: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """Texts longer than the window; what is saved again has the same tensors under the same names."""
    model, tokens = language_model(kind, **fields), text()
    theirs, ours = write(model, tmp_path / "theirs"), tmp_path / "ours"
    loaded = load(theirs)
    expected = logits_of(model, tokens)
    assert alike(loaded.network(tokens), expected)

    save(ours, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    assert torch.equal(logits_of(open_in_transformers(ours), tokens), logits_of(open_in_transformers(theirs), tokens))
    before, after = load_file(theirs / "model.safetensors"), load_file(ours / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((ours / "config.json").read_text()).items() >= loaded.config.items()


GPT = {"family": "gpt", "width": 22, "heads": 2, "depth": 3, "max_positions": 41, "epsilon": 0.02}
LLAMA = {"family": "llama", "width": 30, "heads": 3, "depth": 2, "max_positions": 41, "epsilon": 0.02}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT),
    "gpt2, all fields": (
        "gpt2",
        {**GPT, "feedforward": 29, "activation": "swish", "score": "dot", "scale_by_layer": True, "tied": False},
    ),
    "gpt2, local blocks that are not there": ("gpt2", {**GPT, "depth": 1, "attention_pattern": "gl"}),
    "gpt1": ("openai-gpt", {**GPT, "norm": "post", "activation": "relu"}),
    "gpt1, untied": ("openai-gpt", {**GPT, "norm": "post", "feedforward": 88, "tied": False}),
    "neo": ("gpt_neo", {**GPT, "score": "dot", "projection_bias": False, "attention_pattern": "gl", "window": 7}),
    "neo, inner": ("gpt_neo", {**GPT, "score": "dot", "projection_bias": False, "feedforward": 29, "tied": False}),
    "llama": ("llama", LLAMA),
    "llama, all fields": (
        "llama",
        {
            **LLAMA, "key_heads": 1, "head_width": 14, "feedforward": 37, "activation": "gelu", "bias": True,
            "feedforward_bias": True, "tied": True, "dropout": 0.1,
        },
    ),
    "llama, linear": ("llama", {**LLAMA, "rope_theta": 100.0, "rope_scaling": "linear", "rope_factor": 3.0}),
    "llama, llama3": (
        "llama",
        {**LLAMA, "rope_scaling": "llama3", "rope_factor": 5.0, "original_max_positions": 23, "low_freq_factor": 0.5,
         "high_freq_factor": 3.0},
    ),
    "gpt3": ("regard-gpt", {**GPT, "attention_pattern": "gl", "window": 7}),
    "gpt without biases": ("regard-gpt", {**GPT, "bias": False}),
    "gpt1, another inner": ("regard-gpt", {**GPT, "norm": "post", "feedforward": 29}),
    "gpt1, exact gelu": ("regard-gpt", {**GPT, "norm": "post", "activation": "gelu"}),
    "llama of a width that heads do not share": ("regard-llama", {**LLAMA, "width": 31, "head_width": 10}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "model"), OURS.values(), ids=OURS)
@torch.no_grad()
def test_a_network_of_ours_survives_save_and_load(kind: str, model: dict[str, Any], tmp_path: Path) -> None:
    """Under a published name where it is that mathematics, which transformers then opens; saved again, to the byte."""
    network, tokens = build(model, vocabulary=TOKENS).eval(), text()
    for parameter in network.parameters():  # norms and biases too: ones and zeros would hide a wrong order
        parameter.normal_(std=0.3)
    save(tmp_path / "first", network, vocabulary(TOKENS), {"num_beams": 3})
    assert json.loads((tmp_path / "first/config.json").read_text())["model_type"] == kind
    loaded = load(tmp_path / "first")
    assert torch.equal(loaded.network(tokens), network(tokens))
    save(tmp_path / "second", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name
    if not kind.startswith("regard-"):
        theirs = open_in_transformers(tmp_path / "first")
        assert alike(logits_of(theirs, tokens), network(tokens))
        assert (theirs.config.pad_token_id, theirs.config.bos_token_id, theirs.config.eos_token_id) == (0, 1, 2)
        assert theirs.generation_config.num_beams == 3


@pytest.mark.parametrize("name", ["gpt2", "gpt1", "neo", "llama, grouped", "llama, llama3"])
@torch.no_grad()
def test_greedy_decoding_equals_that_of_transformers(name: str, tmp_path: Path) -> None:
    kind, fields = ODD[name]
    model, prompt = language_model(kind, eos_token_id=None, **fields), text(11, 2)
    network: Any = load(write(model, tmp_path)).network
    expected = model.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=27, do_sample=False
    )
    tokens, new, state = prompt, prompt, EMPTY
    for _ in range(27):
        logits, state = network.step(new, state)
        new = logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, new], 1)
    assert torch.equal(tokens, expected)


PREFIXES = {"gpt2": "transformer.", "openai-gpt": "transformer.", "gpt_neo": "transformer.", "llama": "model."}
BUFFERS = {
    "gpt2": {
        "h.0.attn.bias": torch.ones(1, 1, 41, 41, dtype=torch.uint8),
        "h.2.attn.masked_bias": torch.tensor(-1e4),
    },
    "openai-gpt": {"h.0.attn.bias": torch.ones(1, 1, 41, 41)},
    "gpt_neo": {
        "h.0.attn.attention.bias": torch.ones(1, 1, 41, 41, dtype=torch.bool),
        "h.1.attn.attention.masked_bias": torch.tensor(-1e9),
    },
    "llama": {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5), "rotary_emb.inv_freq": torch.ones(5)},
}


@pytest.mark.parametrize("kind", PREFIXES)
@pytest.mark.parametrize("bare", [False, True], ids=["whole", "bare"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_old_and_bare_files_are_read(kind: str, bare: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Half precision, shards, buffers that say nothing, and names as a model without its output writes them."""
    model, tokens = language_model(kind, tie_word_embeddings=True), text()
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))
    write(model, tmp_path)
    path = tmp_path / "model.safetensors"
    found = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    found |= {PREFIXES[kind] + name: buffer for name, buffer in BUFFERS[kind].items()}
    if bare:
        found = {name.removeprefix(PREFIXES[kind]): tensor for name, tensor in found.items()}
    save_file(found, path)
    assert alike(load(tmp_path).network(tokens), logits_of(model, tokens))
    shard(tmp_path)
    assert alike(load(tmp_path).network(tokens), logits_of(model, tokens))


FORMS: dict[str, dict[str, Any]] = {
    "linear": {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "linear, its newer word": {"rope_theta": 100, "rope_scaling": {"rope_type": "linear", "factor": 3}},
    "llama3": {"rope_theta": 700.0, "rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"}},
    "llama3, trained length outside": {
        "rope_theta": 700.0,
        "original_max_position_embeddings": 19,
        "rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"},
    },
    "llama3, trained length unsaid": {
        "rope_parameters": {key: LLAMA3[key] for key in LLAMA3 if key != "original_max_position_embeddings"}
    },
    "both forms": {"rope_theta": 700.0, "rope_scaling": None, "rope_parameters": {"rope_theta": 300.0}},
    "nothing said": {},
    "nulls": {"rope_theta": 700.0, "rope_scaling": None, "num_key_value_heads": None, "head_dim": None},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@torch.no_grad()
def test_rope_parameters_are_read_in_every_form(form: dict[str, Any], tmp_path: Path) -> None:
    write(language_model("llama"), tmp_path / "a")
    path = tmp_path / "a/config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | form))
    loaded, tokens = load(tmp_path / "a"), text()
    expected = logits_of(open_in_transformers(tmp_path / "a"), tokens)
    assert alike(loaded.network(tokens), expected)
    save(tmp_path / "b", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    assert torch.equal(logits_of(open_in_transformers(tmp_path / "b"), tokens), expected)
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert all(written[key] == value for key, value in form.items() if value is not None)


@torch.no_grad()
def test_keys_have_the_other_names_that_transformers_knows(tmp_path: Path) -> None:
    """A number of heads changes no shape: misread, it would go unseen."""
    for kind, heads in (("gpt2", "n_head"), ("openai-gpt", "n_head"), ("gpt_neo", "num_heads")):
        folder, tokens = tmp_path / kind, text()
        write(language_model(kind), folder)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for gone in ({}, {heads: config[heads]}):
            left = {key: value for key, value in config.items() if key not in gone}
            path.write_text(json.dumps(left | {"num_attention_heads": 11}))
            assert alike(load(folder).network(tokens), logits_of(open_in_transformers(folder), tokens))


def test_what_changes_no_computation_is_kept(tmp_path: Path) -> None:
    kept = {"task_specific_params": {"x": 1}, "n_ctx": 41, "attn_pdrop": 0.3, "embd_pdrop": 0.2, "resid_pdrop": 0.4,
            "summary_type": "mean", "eos_token_id": [2, 5], "pad_token_id": None}  # fmt: skip
    write(language_model("gpt2"), tmp_path / "a")
    change(tmp_path / "a", **kept)
    loaded = load(tmp_path / "a")
    network: Any = loaded.network
    assert network.config.dropout == 0.4
    save(tmp_path / "b", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    assert kept.items() <= json.loads((tmp_path / "b/config.json").read_text()).items()


@torch.no_grad()
def test_an_embedding_may_have_more_rows_than_the_vocabulary(tmp_path: Path) -> None:
    model, tokens = language_model("gpt2", vocab_size=64), text()
    loaded = load(write(model, tmp_path / "a", vocabulary(TOKENS)))
    assert alike(loaded.network(tokens), logits_of(model, tokens))
    save(tmp_path / "b", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    assert alike(load(tmp_path / "b").network(tokens), logits_of(model, tokens))


def test_a_missing_special_token_is_null(tmp_path: Path) -> None:
    """Left out, transformers would take GPT-2's own 50256 for it."""
    words = tokenizer(TOKENS)
    words.pad = words.begin = -1
    save(tmp_path, build(GPT, vocabulary=TOKENS), Vocabulary(words, words), {})
    for name in ("config.json", "generation_config.json"):
        found = json.loads((tmp_path / name).read_text())
        assert (found["pad_token_id"], found["bos_token_id"], found["eos_token_id"]) == (None, None, 2)
        assert "decoder_start_token_id" not in found


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt3"])
def test_the_model_card_states_how_to_load_it(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, build(OURS[kind][1], vocabulary=TOKENS), vocabulary(TOKENS), {})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert re.search(r"Causal language model, [\d,]+ parameters, vocabulary 53\.", card)
    assert "pipeline_tag: text-generation" in card and "## Limitations" in card
    if kind == "gpt3":
        assert "transformers cannot open this checkpoint" in card and "from_pretrained" not in card
        return
    code = card.split("Or, with transformers:")[1].split("## Limitations")[0]
    exec(dedent(code).replace("FOLDER", str(tmp_path)).replace("…", "w3 w7").replace("=64", "=17"), {})
    assert set(capsys.readouterr().out.split()) <= set(vocabulary(TOKENS).source.table)
