"""Whisper checkpoints of others compute here as they did there, and ours open there."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from checkpoints import alike, change, retensor, shard
from needs import need_weights
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.audio.processor import AudioProcessor
from regard.errors import UserError
from regard.interop.folder import load, save
from regard.interop.hf_module import HFModule
from regard.interop.processors import FeatureProcessor
from regard.interop.whisper import SpeechTokens
from regard.layers.inputs import AudioBatch
from regard.models.registry import build
from regard.text.tokenizer import Tokenizer

WORDS = 37  # ids below the first special token
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
           "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")  # fmt: skip
END, BEGIN, EN, DE, TRANSLATE, TRANSCRIBE, _, PREVIOUS, _, NO_TIMESTAMPS = range(WORDS, WORDS + len(SPECIAL))
TOKENS = NO_TIMESTAMPS + 1 + 9  # nine timestamps, without names in the tokenizer
SMALL = {
    "vocab_size": TOKENS, "num_mel_bins": 5, "d_model": 22, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 2, "decoder_attention_heads": 11, "encoder_ffn_dim": 29, "decoder_ffn_dim": 31,
    "max_source_positions": 13, "max_target_positions": 17, "pad_token_id": END, "bos_token_id": END,
    "eos_token_id": END, "decoder_start_token_id": BEGIN, "begin_suppress_tokens": [3, END],
}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "as published": {},
    "relu": {"activation_function": "relu"},
    "gelu_new": {"activation_function": "gelu_new", "num_mel_bins": 3},
    "untied": {"tie_word_embeddings": False},
    "one block each": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 18, "decoder_attention_heads": 3},
    "scale_embedding, which is not used": {"scale_embedding": True},
}
GENERATION = {
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "is_multilingual": True,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "begin_suppress_tokens": [3, END],
    "forced_decoder_ids": [[1, None], [2, TRANSCRIBE]],
    "alignment_heads": [[1, 3], [2, 10]],
    "eos_token_id": END,
    "decoder_start_token_id": BEGIN,
}


def tokenizer() -> Tokenizer:
    table = {f"w{index}": index for index in range(WORDS)} | {name: WORDS + index for index, name in enumerate(SPECIAL)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    inner.add_special_tokens(list(SPECIAL))
    return Tokenizer(inner, {"pad": END, "begin": BEGIN, "end": END, "unknown": 0})


def processor(bins: int = 5) -> FeatureProcessor:
    config = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": bins}
    return FeatureProcessor(AudioProcessor.from_config(config), tokenizer())


@torch.no_grad()
def reference(**fields: Any) -> Any:
    """transformers' model with random weights, also where a new one has zeros, ones or sinusoids."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration(WhisperConfig(**(SMALL | fields))).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.3)
    return model


def write(model: Any, folder: Path, **generation: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        model.save_pretrained(folder)
    processor(model.config.num_mel_bins).save(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION | generation))
    return folder


def opened(folder: Path) -> Any:
    """In transformers, nothing missing and nothing unexpected."""
    from transformers import WhisperForConditionalGeneration

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = WhisperForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    model, report = loaded
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def inputs(config: Any) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(3, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)
    return features, torch.randint(0, config.vocab_size, (3, 11), generator=generator)


@torch.no_grad()
def outputs(model: Any, config: Any) -> tuple[Tensor, Tensor]:
    features, tokens = inputs(config)
    found = model(input_features=features, decoder_input_ids=tokens)
    return found.encoder_last_hidden_state, found.logits


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
def test_parity_in_both_directions(fields: dict[str, Any], tmp_path: Path) -> None:
    model = reference(**fields)
    heads = [[model.config.decoder_layers - 1, 2]]
    theirs, ours = write(model, tmp_path / "theirs", alignment_heads=heads), tmp_path / "ours"
    loaded = load(theirs)
    states, logits = outputs(model, model.config)
    for found, expected in zip(outputs(HFModule(loaded.network), model.config), (states, logits), strict=True):
        assert found.shape == expected.shape
        assert alike(found, expected)

    save(ours, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    again = outputs(opened(ours), model.config)
    assert torch.equal(again[0], states)
    assert torch.equal(again[1], logits)
    before, after = load_file(theirs / "model.safetensors"), load_file(ours / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    written = json.loads((ours / "config.json").read_text())
    ignored = ("torch_dtype", "transformers_version")
    assert written.items() >= {key: value for key, value in loaded.config.items() if key not in ignored}.items()
    kept = json.loads((ours / "generation_config.json").read_text())
    assert kept.items() >= (GENERATION | {"alignment_heads": heads}).items()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_shards(dtype: torch.dtype, tmp_path: Path) -> None:
    """Rounded sinusoids too are those of the file."""
    model = reference().to(dtype)
    write(model, tmp_path)
    shard(tmp_path)
    network = load(tmp_path).network
    expected = outputs(model.float(), model.config)
    assert all(map(alike, outputs(HFModule(network), model.config), expected))


def test_a_file_without_sinusoids_has_those_of_the_paper(tmp_path: Path) -> None:
    model = reference()
    fresh = type(model)(model.config)  # a new model has them
    with torch.no_grad():
        model.model.encoder.embed_positions.weight.copy_(fresh.model.encoder.embed_positions.weight)
    write(model, tmp_path)
    name = "model.encoder.embed_positions.weight"
    retensor(tmp_path, **{name: None})
    assert all(map(alike, outputs(HFModule(load(tmp_path).network), model.config), outputs(model, model.config)))


def test_a_bare_model_has_no_prefix(tmp_path: Path) -> None:
    model = reference()
    write(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert all(map(alike, outputs(HFModule(load(tmp_path).network), model.config), outputs(model, model.config)))


@torch.no_grad()
def test_a_new_network_survives_save_and_load(tmp_path: Path) -> None:
    model = dict(family="whisper", bins=5, width=22, heads=2, depth=2, source_positions=13, max_positions=17)
    network = build(model, vocabulary=TOKENS).eval()
    save(tmp_path, network, processor(), {})
    loaded = load(tmp_path)
    features, tokens = inputs(opened(tmp_path).config)
    audio = AudioBatch(features.mT, torch.full((3,), 26))
    assert torch.equal(loaded.network(audio, tokens), network(audio, tokens))
    assert all(map(alike, outputs(opened(tmp_path), opened(tmp_path).config)[1], network(audio, tokens)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_weighted_layer_sum": True}, "use_weighted_layer_sum = True changes the computation"),
        ({"activation_function": "mish"}, "activation_function = 'mish' is not supported"),
        ({"d_model": 0}, "d_model = 0 should be at least 1"),
        ({"d_model": 23}, "width 23 is not a multiple of heads 2"),
        ({"max_source_positions": 14}, r"mis-shaped: model.encoder.embed_positions.weight \(13, 22\)"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    change(write(reference(), tmp_path), **changes)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alignment_heads": [[3, 0]]}, r"alignment_heads = .*a layer, 0 … 2, and a head, 0 … 10"),
        ({"alignment_heads": [7]}, "alignment_heads"),
        ({"begin_suppress_tokens": [TOKENS]}, "begin_suppress_tokens"),
        ({"forced_decoder_ids": [[1, "en"]]}, "forced_decoder_ids"),
        ({"lang_to_id": {"<|en|>": -1}}, "lang_to_id"),
        ({"no_timestamps_token_id": "x"}, "no_timestamps_token_id"),
        ({"max_initial_timestamp_index": -1}, "max_initial_timestamp_index"),
        ({"task": "summarise"}, "task = 'summarise' is not supported"),
        ({"language": "klingon"}, "language = 'klingon' is unknown"),
        ({"suppress_tokens": [-1]}, "suppress_tokens"),
        ({"sequence_bias": [[[3], 2.0]]}, "sequence_bias"),
    ],
)
def test_invalid_generation_settings_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(reference(), tmp_path, **changes)
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path)
    assert "generation_config.json" in str(error.value)


def speech_tokens(generation: dict[str, Any]) -> SpeechTokens:
    network: Any = build(dict(family="whisper", width=22, heads=2, decoder_heads=11, depth=3), vocabulary=TOKENS)
    tokens = SpeechTokens.of(generation, network.config, tokenizer())
    assert tokens is not None
    return tokens


def test_the_prompt_is_that_of_the_files() -> None:
    tokens = speech_tokens(GENERATION)
    assert (tokens.default_language, tokens.default_task) == ("", "transcribe")
    assert tokens.prompt("de", "transcribe", timestamps=True) == [BEGIN, DE, TRANSCRIBE]
    assert tokens.prompt("en", "translate", timestamps=False) == [BEGIN, EN, TRANSLATE, NO_TIMESTAMPS]
    assert tokens.first_timestamp == NO_TIMESTAMPS + 1
    assert tokens.alignment_heads == ((1, 3), (2, 10))
    forced = GENERATION | {"forced_decoder_ids": [[1, DE], [2, TRANSLATE], [3, NO_TIMESTAMPS]]}
    assert (speech_tokens(forced).default_language, speech_tokens(forced).default_task) == ("de", "translate")


def test_without_keys_the_names_of_the_tokenizer_count() -> None:
    assert speech_tokens({}).prompt("de", "translate", False) == speech_tokens(GENERATION).prompt(
        "de", "translate", False
    )
    english = speech_tokens({"is_multilingual": False})
    assert english.prompt("en", "transcribe", timestamps=False) == [BEGIN, NO_TIMESTAMPS]
    with pytest.raises(UserError, match="multilingual"):
        english.prompt("en", "translate", timestamps=False)
    with pytest.raises(UserError, match="English only"):
        english.with_language("de")


# ── published weights ────────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def test_the_published_weights_compute_as_in_transformers() -> None:
    """Float16 files are computed with in float32."""
    folder = need_weights("whisper-tiny-en")
    network = load(folder).network
    generator = torch.Generator().manual_seed(3)
    features, tokens = torch.randn(1, 80, 3000, generator=generator), torch.tensor([[50257, 50362, 383, 1271]])
    theirs = opened(folder).float()(input_features=features, decoder_input_ids=tokens)
    ours = HFModule(network)(input_features=features, decoder_input_ids=tokens)
    assert ours.encoder_last_hidden_state is not None
    assert alike(ours.encoder_last_hidden_state, theirs.encoder_last_hidden_state)
    assert alike(ours.logits, theirs.logits)
