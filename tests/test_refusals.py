"""A checkpoint folder that does not fit is refused, and the message names the file and the cause."""

import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from checkpoints import MODELS, change, reference, retensor, shard, vocabulary, write_reference

from regard.errors import UserError
from regard.interop.folder import load, save
from regard.models import build


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads, to be spoiled in one way each."""
    folder = tmp_path_factory.mktemp("checkpoints") / "good"
    write_reference(reference(), folder, vocabulary())
    load(folder)
    return folder


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


REFUSED = {
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: not found"),
    "broken JSON": (lambda f: (f / "config.json").write_text('{"a": '), r"config\.json: not JSON"),
    "no object": (lambda f: (f / "config.json").write_text("[1]"), r"config\.json: should hold a JSON object"),
    "unknown type": (lambda f: change(f, model_type="marion"), "'marion' is unknown; did you mean 'marian'"),
    "pre-norm": (lambda f: change(f, normalize_before=True), r"config\.json: normalize_before = True changes"),
    "embedding norm": (lambda f: change(f, normalize_embedding=True), "normalize_embedding = True"),
    "final norm": (lambda f: change(f, add_final_layer_norm=True), "add_final_layer_norm = True"),
    "learned positions": (lambda f: change(f, static_position_embeddings=False), "static_position_embeddings = False"),
    "quantised": (lambda f: change(f, quantization_config={"bits": 8}), "quantization_config = {'bits': 8}"),
    "activation": (lambda f: change(f, activation_function="gelu_nwe"), "did you mean 'gelu_new'"),
    "a size that is text": (lambda f: change(f, d_model="14"), "d_model = '14' should be of type int"),
    "a size of nothing": (lambda f: change(f, decoder_layers=0), "decoder_layers = 0 should be at least 1"),
    "heads that do not fit": (lambda f: change(f, encoder_attention_heads=3), "width 14 is not a multiple of heads 3"),
    "one table for two sizes": (
        lambda f: change(f, decoder_vocab_size=7),
        "vocab_size = 53 and decoder_vocab_size = 7",
    ),
    "another end": (lambda f: change(f, eos_token_id=5), r"eos_token_id = 5, but the tokenizer ends with 2"),
    "begin outside": (lambda f: change(f, decoder_start_token_id=53), "decoder_start_token_id = 53 is no token"),
    "pickled only": (only_pickled, r"pytorch_model\.bin can run code .* python -c .*safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights here"),
    "truncated": (truncate, r"model\.safetensors: not a whole safetensors file"),
    "missing": (lambda f: retensor(f, **{"model.shared.weight": None}), r"missing: model\.shared\.weight"),
    "unexpected": (lambda f: retensor(f, extra=torch.ones(3)), "unexpected: extra"),
    "mis-shaped": (
        lambda f: retensor(f, **{"model.shared.weight": torch.ones(52, 14)}),
        r"mis-shaped: model\.shared\.weight \(52, 14\) instead of \(53, 14\)",
    ),
    "an unlike copy": (
        lambda f: retensor(f, **{"lm_head.weight": torch.ones(53, 14)}),
        r"unlike its copy: lm_head\.weight and model\.shared\.weight",
    ),
    "whole numbers": (
        lambda f: retensor(f, **{"model.shared.weight": torch.ones(53, 14, dtype=torch.int8)}),
        r"model\.shared\.weight is torch\.int8",
    ),
    "other positions": (
        lambda f: retensor(f, **{"model.encoder.embed_positions.weight": torch.ones(61, 14)}),
        r"model\.encoder\.embed_positions\.weight is not the table of sinusoids",
    ),
    "a shard outside": (
        lambda f: shard(f, "../model-{}-of-2.safetensors"),
        r"index\.json: names the file '\.\./model-0",
    ),
    "an absolute shard": (lambda f: shard(f, "/model-{}-of-2.safetensors"), "names the file '/model-0"),
    "a shard that is not there": (
        lambda f: shard(f, "other-{}-of-2.safetensors"),
        r"other-0-of-2\.safetensors: not found",
    ),
    "a shard of another kind": (lambda f: shard(f, "model-{}-of-2.bin"), r"a shard is a \.safetensors file"),
    "tensors not in their shard": (lambda f: shard(f, "model-0-of-2.safetensors"), "not in the shards it names"),
    "another vocabulary": (lambda f: vocabulary(41).save(f), "source tokenizer has 41 tokens, .* 53 rows"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer here"),
}


@pytest.mark.parametrize(("spoil", "message"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_does_not_fit_is_refused_by_name(spoil: Any, message: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    copytree(good, folder)
    spoil(folder)
    with pytest.raises(UserError, match=message) as refusal:
        load(folder)
    assert str(folder) in str(refusal.value)


def test_our_own_config_is_a_closed_schema(tmp_path: Path) -> None:
    save(tmp_path, build(MODELS["seq2seq"], source_vocabulary=53, target_vocabulary=53), vocabulary(), {})
    change(tmp_path, widht=7)
    with pytest.raises(UserError, match=r"config\.json: widht is unknown; did you mean 'width'"):
        load(tmp_path)


def test_the_way_to_convert_a_pickled_checkpoint_works(tmp_path: Path) -> None:
    """The line that the refusal gives, run as it stands."""
    model = reference()
    write_reference(model, tmp_path, vocabulary())
    expected = load(tmp_path).network.state_dict()
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError) as refusal:
        load(tmp_path)
    command = shlex.split(str(refusal.value)[str(refusal.value).index("python -c") :])
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    for name, tensor in load(tmp_path).network.state_dict().items():
        assert torch.equal(tensor, expected[name])
