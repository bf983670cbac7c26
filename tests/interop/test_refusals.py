"""A checkpoint folder that does not fit is refused, and the message names the file and the cause."""

import json
import os
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
from regard.models.registry import build, configure


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads, to be broken in one way each."""
    folder = tmp_path_factory.mktemp("checkpoints") / "good"
    write_reference(reference(), folder, vocabulary())
    load(folder)
    return folder


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def generate(folder: Path, **fields: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(fields))


def settle(folder: Path, **settings: Any) -> None:
    """Give the folder these generation settings; without any, no file of them."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps(settings)) if settings else path.unlink()


REFUSED = {
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: not found"),
    "broken JSON": (lambda f: (f / "config.json").write_text('{"a": '), r"config\.json: not JSON"),
    "deep JSON": (lambda f: (f / "config.json").write_text('{"a":' * 99_999), r"config\.json: not JSON"),
    "a type that is a list": (lambda f: change(f, model_type=["marian"]), "is not supported"),
    "an activation that is a list": (lambda f: change(f, activation_function=["relu"]), "is not supported"),
    "dropout that is no number": (lambda f: change(f, dropout=float("nan")), r"config\.json: model\.dropout = nan"),
    "endless dropout": (lambda f: change(f, dropout=float("inf")), r"config\.json: model\.dropout = inf"),
    "an endless stack": (
        lambda f: change(f, encoder_layers=1 << 40),
        r"model\.depth = 1099511627776 should be at most",
    ),
    "a width that no machine has": (lambda f: change(f, d_model=1 << 40), r"model\.width = .* should be at most"),
    "a width that the file has not": (lambda f: change(f, d_model=1 << 22), r"mis-shaped: .* instead of \(53, 4194304"),
    "banned words of two": (
        lambda f: generate(f, bad_words_ids=[[0], [5, 6]]),
        r"generation.*bad_words_ids = \[\[0\], ",
    ),
    "banned words that are none": (lambda f: generate(f, bad_words_ids=5), "bad_words_ids = 5 should be"),
    "banned outside": (lambda f: generate(f, bad_words_ids=[[53]]), "bad_words_ids holds 53, but .* 0 … 52"),
    "suppressed outside": (lambda f: generate(f, suppress_tokens=[-1]), "suppress_tokens holds -1, but .* 0 … 52"),
    "suppressed text": (
        lambda f: generate(f, suppress_tokens="a"),
        "suppress_tokens = a should be a list",
    ),
    "a forced begin": (lambda f: generate(f, forced_bos_token_id=7), "forced_bos_token_id = 7 is not supported"),
    "no repeats of the source": (
        lambda f: generate(f, encoder_no_repeat_ngram_size=3),
        "encoder_no_repeat_ngram_size = 3",
    ),
    "groups of beams": (lambda f: generate(f, num_beams=4, num_beam_groups=2), "num_beam_groups = 2 is not supported"),
    "another sampling": (lambda f: generate(f, do_sample=True, typical_p=0.9), r"typical_p = 0\.9 is not supported"),
    "a length of text": (lambda f: generate(f, max_length="9"), "max_length = 9 should be an integer"),
    "no object": (lambda f: (f / "config.json").write_text("[1]"), r"config\.json: should hold a JSON object"),
    "unknown type": (
        lambda f: change(f, model_type="bart"),
        "model_type = 'bart' is not supported; expected one of: marian, (?!.*regard-).*bert",
    ),
    "pre-norm": (lambda f: change(f, normalize_before=True), r"config\.json: normalize_before = True changes"),
    "embedding norm": (lambda f: change(f, normalize_embedding=True), "normalize_embedding = True"),
    "final norm": (lambda f: change(f, add_final_layer_norm=True), "add_final_layer_norm = True"),
    "learned positions": (lambda f: change(f, static_position_embeddings=False), "static_position_embeddings = False"),
    "quantised": (lambda f: change(f, quantization_config={"bits": 8}), "quantization_config = {'bits': 8}"),
    "activation": (lambda f: change(f, activation_function="gelu_nwe"), "'gelu_nwe' is not supported.*gelu_new"),
    "a size that is text": (lambda f: change(f, d_model="14"), "d_model = '14' should be of type int"),
    "a size of nothing": (lambda f: change(f, decoder_layers=0), "decoder_layers = 0 should be at least 1"),
    "heads that do not fit": (lambda f: change(f, encoder_attention_heads=3), "width 14 is not a multiple of heads 3"),
    "one table for two sizes": (
        lambda f: change(f, decoder_vocab_size=7),
        "vocab_size = 53 and decoder_vocab_size = 7",
    ),
    "another end": (
        lambda f: settle(f, eos_token_id=5),
        r"generation_config\.json: eos_token_id = 5, but the tokenizer ends with 2",
    ),
    "another end in an older folder": (
        lambda f: settle(f) or change(f, eos_token_id=5),
        r"/config\.json: eos_token_id = 5, but the tokenizer ends with 2",
    ),
    "begin outside": (lambda f: settle(f, decoder_start_token_id=53), "decoder_start_token_id = 53 is no token"),
    "pickled only": (only_pickled, r"pytorch_model\.bin can run code .* python -c .*safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights here"),
    "truncated": (truncate, r"model\.safetensors: not a complete safetensors file"),
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
}


@pytest.mark.parametrize(("spoil", "message"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_does_not_fit_is_refused_by_name(spoil: Any, message: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    copytree(good, folder)
    spoil(folder)
    with pytest.raises(UserError, match=message) as refusal:
        load(folder)
    assert str(folder) in str(refusal.value)


SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
)


@pytest.mark.parametrize("name", SMALL_FILES)
@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_a_file_that_never_ends_is_refused(name: str, kind: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    copytree(good, folder)
    (folder / name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="not a regular file") as refusal:
        load(folder)
    assert str(folder / name) in str(refusal.value)


def test_a_huge_config_is_refused_before_it_is_read(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    copytree(good, folder)
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 33)  # sparse
    with pytest.raises(UserError, match=r"config\.json: .*8,589,934,592 bytes, over the limit"):
        load(folder)


def test_a_size_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    """Of our own folders too: sizes are compared with the tensors before anything is allocated."""
    for name in ("seq2seq", "transformer"):
        save(tmp_path, build(MODELS[name], source_vocabulary=53, target_vocabulary=53), vocabulary(), {})
        for width, message in (
            (1 << 40, r"config\.json: model\.width = .* should be at most"),
            (1 << 22, "mis-shaped"),
        ):
            change(tmp_path, width=width)
            with pytest.raises(UserError, match=message):
                load(tmp_path)


@pytest.mark.parametrize("family", ["seq2seq", "transformer"])
@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_sizes_of_nothing_or_too_much_are_refused_by_name(family: str, value: int) -> None:
    sizes = {"seq2seq": ("width", "depth", "embedding_width"), "transformer": ("width", "heads", "depth")}
    for name in sizes[family]:
        with pytest.raises(UserError, match=rf"model\.{name} = {value} should be at"):
            configure({"family": family, name: value}, source_vocabulary=7, target_vocabulary=7)
    configure({"family": family, "decoder_depth": 0}, source_vocabulary=7, target_vocabulary=7)
    with pytest.raises(UserError, match=r"model\.decoder_depth = -1"):
        configure({"family": family, "decoder_depth": -1}, source_vocabulary=7, target_vocabulary=7)


def test_a_width_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(UserError, match="width 1 leaves no state for each direction"):
        build({"family": "seq2seq", "width": 1}, source_vocabulary=7, target_vocabulary=7)
    build({"family": "seq2seq", "width": 1, "encoder_width": 1}, source_vocabulary=7, target_vocabulary=7)


def test_our_own_config_is_a_closed_schema(tmp_path: Path) -> None:
    save(tmp_path, build(MODELS["seq2seq"], source_vocabulary=53, target_vocabulary=53), vocabulary(), {})
    change(tmp_path, widht=7)
    with pytest.raises(UserError, match=r"config\.json: widht is unknown; did you mean 'width'"):
        load(tmp_path)


def test_the_command_that_converts_a_pickled_checkpoint_works(tmp_path: Path) -> None:
    """The command of the error message, run unchanged."""
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
