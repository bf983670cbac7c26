"""Checkpoint folders: what others wrote computes here as it did there, and what we write opens there."""

import json
import warnings
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from checkpoints import (
    MODELS,
    alike,
    batch,
    change,
    open_reference,
    reference,
    reference_logits,
    sentencepiece_folder,
    shard,
    vocabulary,
    write_reference,
)
from safetensors.torch import load_file, save_file

from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.interop.folder import load, save
from regard.interop.generation_config import decode_fields
from regard.models.registry import build
from regard.text.vocabulary import Vocabulary

ODD = {
    "unequal sides": {
        "encoder_layers": 3,
        "decoder_layers": 1,
        "encoder_attention_heads": 7,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 17,
        "decoder_ffn_dim": 29,
    },
    "scaled": {"scale_embedding": True},
    "prime width, one head": {"d_model": 13, "encoder_attention_heads": 1, "decoder_attention_heads": 13},
    "swish": {"activation_function": "swish"},
    "relu": {"activation_function": "relu"},
    "silu": {"activation_function": "silu"},
    "tanh": {"activation_function": "tanh"},
    "gelu_new": {"activation_function": "gelu_new"},
    "gelu_fast": {"activation_function": "gelu_fast"},
    "untied": {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
    "output untied": {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": True},
    "sides apart": {"share_encoder_decoder_embeddings": False},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47},
    "two vocabularies, untied": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "decoder_vocab_size": 59,
    },
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
@torch.no_grad()
def test_marian_computes_as_transformers_does_in_both_directions(fields: dict[str, Any], tmp_path: Path) -> None:
    target_size = fields.get("decoder_vocab_size")
    model, words = reference(**fields), vocabulary(53, target_size)
    write_reference(model, tmp_path / "theirs", words)
    loaded = load(tmp_path / "theirs")
    source, target = batch(53, target_size or 53)
    expected = reference_logits(model, source, target)
    assert alike(loaded.network(source, target), expected)

    save(tmp_path / "ours", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    assert alike(reference_logits(open_reference(tmp_path / "ours"), source, target), expected)
    assert (tmp_path / "ours" / "README.md").exists()


@pytest.mark.parametrize("positions", ["sinusoid", "sinusoid_halves"])
@pytest.mark.parametrize("tied", ["all", "output", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "swish", "tanh"])
@torch.no_grad()
def test_a_network_of_ours_opens_in_transformers(positions: str, tied: str, activation: str, tmp_path: Path) -> None:
    """Also with the paper's layout of sinusoids, whose width is renumbered on the way out."""
    shape = {
        "width": 12,
        "heads": 3,
        "depth": 2,
        "feedforward": 19,
        "decoder_heads": 2,
        "decoder_depth": 1,
        "decoder_feedforward": 31,
    }
    network: Any = build(
        dict(family="transformer", positions=positions, tied=tied, activation=activation, **shape),
        source_vocabulary=53,
        target_vocabulary=53,
    ).eval()
    for parameter in network.parameters():  # norms and biases too: ones and zeros would hide a wrong order
        parameter.normal_(std=0.3)
    save(tmp_path, network, vocabulary(), {"num_beams": 3})
    source, target = batch()
    model = open_reference(tmp_path)
    assert alike(reference_logits(model, source, target), network(source, target))
    assert alike(load(tmp_path).network(source, target), network(source, target))
    assert model.config.decoder_start_token_id == 1
    assert model.generation_config.num_beams == 3


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_saving_again_writes_the_same_bytes(model: dict[str, Any], tmp_path: Path) -> None:
    network = build(model, source_vocabulary=53, target_vocabulary=53).eval()
    save(tmp_path / "first", network, vocabulary(), {"num_beams": 2, "temperature": 0.0, "max_new_tokens": 0})
    before = torch.random.get_rng_state()
    loaded = load(tmp_path / "first")
    assert torch.equal(before, torch.random.get_rng_state())
    save(tmp_path / "second", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "second").iterdir())
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    source, target = batch()
    assert torch.equal(network(source, target), loaded.network(source, target))
    tensors = load_file(tmp_path / "first" / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(p.numel() for p in network.parameters())


def test_config_keys_that_do_not_change_the_computation_are_kept(tmp_path: Path) -> None:
    write_reference(reference(), tmp_path / "a", vocabulary())
    change(tmp_path / "a", task_specific_params={"x": 1}, attention_dropout=0.25, activation_function="silu")
    loaded = load(tmp_path / "a")
    save(tmp_path / "b", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert {key: loaded.config[key] for key in loaded.config if key != "dtype"}.items() <= written.items()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_and_position_tables_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    model = reference(scale_embedding=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
        model.final_logits_bias.copy_(model.final_logits_bias.to(dtype))
    model.model.encoder.embed_positions.weight.copy_(model.model.encoder.embed_positions.create_weight())
    model.model.decoder.embed_positions.weight.copy_(model.model.decoder.embed_positions.create_weight())
    write_reference(model, tmp_path, vocabulary())
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        tensors[name] = model.state_dict()[name].to(dtype).clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    network = load(tmp_path).network
    source, target = batch()
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert alike(network(source, target), reference_logits(model, source, target))


@torch.no_grad()
def test_shards_are_read_like_a_single_file(tmp_path: Path) -> None:
    model = reference()
    write_reference(model, tmp_path, vocabulary())
    source, target = batch()
    expected = load(tmp_path).network(source, target)
    shard(tmp_path)
    assert torch.equal(load(tmp_path).network(source, target), expected)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("eager", [0.0, 4.0], ids=["cut at the limit", "ends before"])
def test_decoding_finds_what_transformers_finds(eager: float, beams: int, tmp_path: Path) -> None:
    model = reference(scale_embedding=True, encoder_layers=1)
    with torch.no_grad():
        model.final_logits_bias[0, 2] += eager  # to end
    write_reference(model, tmp_path, vocabulary())
    loaded = load(tmp_path)
    source, _ = batch()
    options = DecodeOptions(num_beams=beams, length_penalty=0.7)
    tokenizer = loaded.processor.target
    assert tokenizer.begin == 0
    found = search(loaded.network, source, tokenizer.begin, tokenizer.end, options, 17)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = model.generate(
            input_ids=source.tokens, attention_mask=source.real.long(), num_beams=beams, max_new_tokens=17,
            do_sample=False, length_penalty=0.7, early_stopping="never",
        )  # fmt: skip
    ended = 0
    for best, row in zip(found, rows.tolist(), strict=True):
        tokens = row[1:]
        ended += 2 in tokens
        assert best[0].tokens == (tokens[: tokens.index(2)] if 2 in tokens else tokens)
    assert (ended > 0) == (eager > 0)


def test_generation_settings_are_converted_both_ways(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    network = build(MODELS["marian"], source_vocabulary=53, target_vocabulary=53)
    for options in (DecodeOptions(num_beams=5, length_penalty=0.6), DecodeOptions(temperature=0.7, top_p=0.9, seed=3)):
        save(tmp_path, network, vocabulary(), dict(vars(options)))
        assert DecodeOptions(**decode_fields(load(tmp_path).generation)) == options
        theirs = GenerationConfig.from_pretrained(tmp_path)
        assert theirs.do_sample == (options.temperature > 0)
        assert theirs.decoder_start_token_id == 1


PUBLISHED = {  # as thousands of Marian folders have it
    "bad_words_ids": [[0]], "bos_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
    "forced_eos_token_id": 2, "max_length": 512, "num_beams": 6, "renormalize_logits": True,
    "num_beam_groups": 1, "diversity_penalty": 0.0, "typical_p": 0.9, "transformers_version": "4.32.0.dev0",
}  # fmt: skip


@pytest.mark.parametrize("where", ["generation_config.json", "config.json"])
def test_published_generation_settings_are_read(where: str, tmp_path: Path) -> None:
    write_reference(reference(), tmp_path, vocabulary())
    (tmp_path / "generation_config.json").unlink()
    if where == "config.json":
        change(tmp_path, **PUBLISHED)
    else:
        (tmp_path / where).write_text(json.dumps(PUBLISHED))
    found = DecodeOptions(**decode_fields(load(tmp_path).generation))
    assert found == DecodeOptions(num_beams=6, max_new_tokens=511, suppress_tokens=(0,))


@torch.no_grad()
def test_saving_over_another_model_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Shards, an index, a second tokenizer, SentencePiece models: a reader would prefer some of them to ours."""
    sentencepiece_folder(tmp_path / "used")
    write_reference(reference(share_encoder_decoder_embeddings=False, decoder_vocab_size=47), tmp_path / "used",
                    vocabulary(53, 47))  # fmt: skip
    sentencepiece_folder(tmp_path / "words")
    for path in (tmp_path / "words").iterdir():
        path.rename(tmp_path / "used" / path.name)
    shard(tmp_path / "used")
    (tmp_path / "used" / "notes.txt").write_text("mine")
    network = build(MODELS["seq2seq"], source_vocabulary=53, target_vocabulary=53).eval()
    for folder in ("used", "new"):
        save(tmp_path / folder, network, vocabulary(), {})
    names = {folder: {path.name for path in (tmp_path / folder).iterdir()} for folder in ("used", "new")}
    assert names["used"] == names["new"] | {"notes.txt"}
    source, target = batch()
    assert torch.equal(load(tmp_path / "used").network(source, target), network(source, target))


def test_a_save_that_fails_leaves_the_model_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(MODELS["seq2seq"], source_vocabulary=53, target_vocabulary=53).eval()
    save(tmp_path, network, vocabulary(), {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Vocabulary, "save", fail)
    other = build(MODELS["lstm"], source_vocabulary=41, target_vocabulary=41)
    with pytest.raises(OSError, match="no space left"):
        save(tmp_path, other, vocabulary(41), {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_auto_tokenizer_tokenizes_as_we_do(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    network = build(MODELS["marian"], source_vocabulary=53, target_vocabulary=53)
    save(tmp_path, network, vocabulary(), {})
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    text = "w1 w48 w17 nothing w3"
    assert theirs(text, add_special_tokens=False)["input_ids"] == load(tmp_path).processor.source.encode(text)
    assert theirs(text)["input_ids"][-1] == 2
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (0, 1, 2)


@torch.no_grad()
def test_a_folder_with_sentencepiece_models_survives_load_and_save(tmp_path: Path) -> None:
    from transformers import MarianTokenizer

    words = sentencepiece_folder(tmp_path / "a")
    size, pad = len(words), words["<pad>"]
    model = reference(vocab_size=size, pad_token_id=pad, eos_token_id=0, bos_token_id=0, decoder_start_token_id=pad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(tmp_path / "a")
    loaded = load(tmp_path / "a")
    assert (loaded.processor.target.begin, loaded.processor.target.end) == (pad, 0)
    source, target = batch(size, size)
    assert alike(loaded.network(source, target), reference_logits(model, source, target))
    save(tmp_path / "b", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = MarianTokenizer.from_pretrained(tmp_path / "b")
    text = "the cat saw 7 dogs"
    assert theirs(text)["input_ids"] == [*loaded.processor.source.encode(text), 0]
    assert load(tmp_path / "b").config == loaded.config | {"dtype": "float32"}
    assert alike(
        reference_logits(open_reference(tmp_path / "b"), source, target), reference_logits(model, source, target)
    )


def test_the_commands_of_the_model_card_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = build(MODELS["marian"], source_vocabulary=53, target_vocabulary=53)
    save(tmp_path, network, vocabulary(), {"num_beams": 2})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    code = card.split("Or, with transformers:")[1].split("## Limitations")[0]
    exec(dedent(code).replace("FOLDER", str(tmp_path)).replace("…", "w3 w7"), {})
    assert set(capsys.readouterr().out.split()) <= set(vocabulary().source.table)
