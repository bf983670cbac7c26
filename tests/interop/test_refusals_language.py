"""A language model's folder that does not fit is refused, and the message names the file and the cause."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from checkpoints import change, retensor, vocabulary
from language_checkpoints import TOKENS, language_model, write
from safetensors.torch import load_file, save_file

from regard.errors import UserError
from regard.interop.folder import load, save
from regard.models.registry import build


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of a kind that loads, to be broken in one way each."""
    place, made = tmp_path_factory.mktemp("checkpoints"), {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = write(language_model(kind), place / kind)
            load(made[kind])
        return made[kind]

    return folder


def rope(folder: Path, **said: Any) -> None:
    change(folder, rope_parameters=said)


def headless(folder: Path) -> None:
    """As LlamaModel, which has no output, would write it."""
    found = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in found.items() if name != "lm_head.weight"}
    save_file(bare, folder / "model.safetensors")


REFUSED = {
    "cross attention": ("gpt2", lambda f: change(f, add_cross_attention=True), "add_cross_attention = True changes"),
    "quantised": ("gpt2", lambda f: change(f, quantization_config={"bits": 4}), "quantization_config = {'bits': 4}"),
    "quantised llama": ("llama", lambda f: change(f, quantization_config={"bits": 4}), "quantization_config"),
    "an encoder": ("gpt_neo", lambda f: change(f, is_encoder_decoder=True), "is_encoder_decoder = True"),
    "activation": (
        "gpt2",
        lambda f: change(f, activation_function="gelu_nwe"),
        "'gelu_nwe' is not supported.*gelu_new",
    ),
    "activation of GPT-1": ("openai-gpt", lambda f: change(f, afn="gelu_new"), "afn = 'gelu_new' is not supported"),
    "activation that is a list": (
        "llama",
        lambda f: change(f, hidden_act=["silu"]),
        "hidden_act = .* is not supported",
    ),
    "scale that is a number": (
        "gpt2",
        lambda f: change(f, scale_attn_weights=2),
        "scale_attn_weights = '2' is not supported; expected one of: True, False",
    ),
    "a size that is text": ("gpt2", lambda f: change(f, n_inner="88"), "n_inner = '88' should be of type int"),
    "a size of nothing": ("llama", lambda f: change(f, head_dim=0), "head_dim = 0 should be at least 1"),
    "heads that do not fit": ("gpt2", lambda f: change(f, n_head=3), "width 22 is not a multiple of heads 3"),
    "keys that do not fit": ("llama", lambda f: change(f, num_key_value_heads=2), "not a multiple of key_heads 2"),
    "an endless stack": ("gpt2", lambda f: change(f, n_layer=1 << 40), r"model\.depth = .* should be at most 1000"),
    "a width that the file has not": ("llama", lambda f: change(f, hidden_size=3 << 20), "mis-shaped"),
    "types for fewer blocks": (
        "gpt_neo",
        lambda f: change(f, attention_types=[[["global"], 2]], attention_layers=None),
        "attention_types = .* for each of 3 blocks",
    ),
    "types without end": (
        "gpt_neo",
        lambda f: change(f, attention_types=[[["global"], 1 << 60]], attention_layers=None),
        "attention_types = .* for each of 3 blocks",
    ),
    "types that are none": (
        "gpt_neo",
        lambda f: change(f, attention_types="global", attention_layers=None),
        "attention_types = global should be",
    ),
    "an unknown layer": (
        "gpt_neo",
        lambda f: change(f, attention_types=None, attention_layers=["global", "sparse", "local"]),
        "attention_layers = .*sparse.* should be 'global' or 'local'",
    ),
    "types unlike layers": (
        "gpt_neo",
        lambda f: change(f, attention_layers=["global"] * 3),
        "attention_types = .* and attention_layers = .* contradict each other",
    ),
    "dynamic": ("llama", lambda f: rope(f, rope_type="dynamic", factor=2.0), "rope_type = 'dynamic' is not supported"),
    "yarn": ("llama", lambda f: change(f, rope_scaling={"type": "yarn"}), "rope_type = 'yarn' is not supported"),
    "longrope": ("llama", lambda f: rope(f, rope_type="longrope"), "expected one of: default, linear, llama3"),
    "no type at all": ("llama", lambda f: rope(f, rope_type=7), "rope_type = '7' is not supported"),
    "speeds that are text": ("llama", lambda f: change(f, rope_scaling="linear"), "rope_scaling = 'linear' should be"),
    "linear by what": ("llama", lambda f: rope(f, rope_type="linear"), "rope_type = 'linear' needs factor"),
    "llama3 by what": ("llama", lambda f: rope(f, rope_type="llama3", factor=2.0), "needs low_freq_factor"),
    "llama3 in disorder": (
        "llama",
        lambda f: rope(f, rope_type="llama3", factor=2.0, low_freq_factor=4.0, high_freq_factor=1.0),
        r"low_freq_factor 4\.0 should be below high_freq_factor 1\.0",
    ),
    "a base of nothing": ("llama", lambda f: rope(f, rope_theta=0), "rope_theta 0 should be above 0"),
    "a base of text": ("llama", lambda f: rope(f, rope_theta="10000"), "rope_theta = '10000' should be of type float"),
    "an endless base": ("llama", lambda f: rope(f, rope_theta=float("inf")), r"model\.rope_theta = inf"),
    "half turned": ("llama", lambda f: rope(f, partial_rotary_factor=0.5), r"partial_rotary_factor = 0\.5 changes"),
    "half turned, outside": ("llama", lambda f: change(f, partial_rotary_factor=0.5), r"partial_rotary_factor = 0\.5"),
    "a window": ("llama", lambda f: change(f, sliding_window=7), "sliding_window = 7 changes"),
    "in parallel": ("llama", lambda f: change(f, pretraining_tp=2), "pretraining_tp = 2 changes"),
    "missing": (
        "gpt2",
        lambda f: retensor(f, **{"transformer.h.1.attn.c_attn.weight": None}),
        r"missing: transformer\.h\.1\.attn\.c_attn\.weight$",
    ),
    "mis-shaped": (
        "gpt2",
        lambda f: retensor(f, **{"transformer.h.1.attn.c_attn.weight": torch.ones(66, 22)}),
        r"mis-shaped: transformer\.h\.1\.attn\.c_attn\.weight \(66, 22\) instead of \(22, 66\)$",
    ),
    "mis-shaped bias": (
        "openai-gpt",
        lambda f: retensor(f, **{"transformer.h.1.attn.c_attn.bias": torch.ones(65)}),
        r"mis-shaped: transformer\.h\.1\.attn\.c_attn\.bias \(65,\) instead of \(66,\)$",
    ),
    "unexpected": (
        "gpt2",
        lambda f: retensor(f, **{"multiple_choice_head.summary.weight": torch.ones(1, 22)}),
        r"unexpected: multiple_choice_head\.summary\.weight",
    ),
    "an unlike copy": (
        "gpt_neo",
        lambda f: retensor(f, **{"lm_head.weight": torch.ones(TOKENS, 22)}),
        r"unlike its copy: lm_head\.weight and transformer\.wte\.weight",
    ),
    "no output": ("llama", headless, r"missing: lm_head\.weight"),
    "a bias that is not said": (
        "llama",
        lambda f: retensor(f, **{"model.layers.0.mlp.up_proj.bias": torch.ones(37)}),
        r"unexpected: model\.layers\.0\.mlp\.up_proj\.bias",
    ),
    "more tokens than rows": (
        "gpt2",
        lambda f: vocabulary(59).save(f),
        "the tokenizer has 59 tokens, .* 53 rows; tokenizer and weights are of different models",
    ),
    "fewer tokens, and an odd table": ("gpt2", lambda f: vocabulary(47).save(f), "has 47 tokens, .* 53 rows"),
}


@pytest.mark.parametrize(("kind", "spoil", "message"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_does_not_fit_is_refused_by_name(
    kind: str, spoil: Any, message: str, good: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "spoiled"
    copytree(good(kind), folder)
    spoil(folder)
    with pytest.raises(UserError, match=message) as refusal:
        load(folder)
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(("rows", "fits"), [(1080, True), (1084, False), (1088, False)])
def test_spare_rows_are_fewer_than_1024_and_make_a_multiple_of_8(rows: int, fits: bool, tmp_path: Path) -> None:
    network = build({"family": "gpt", "width": 22, "heads": 2, "depth": 1, "max_positions": 7}, vocabulary=rows)
    save(tmp_path, network, vocabulary(61), {})
    if fits:
        load(tmp_path)
        return
    with pytest.raises(UserError, match=f"the tokenizer has 61 tokens, .* {rows} rows"):
        load(tmp_path)


def test_our_own_config_is_a_closed_schema(tmp_path: Path) -> None:
    network = build(
        {"family": "gpt", "width": 22, "heads": 2, "depth": 1, "max_positions": 7, "bias": False}, vocabulary=TOKENS
    )
    save(tmp_path, network, vocabulary(TOKENS), {})
    change(tmp_path, widht=7)
    with pytest.raises(UserError, match=r"config\.json: widht is unknown; did you mean 'width'"):
        load(tmp_path)
