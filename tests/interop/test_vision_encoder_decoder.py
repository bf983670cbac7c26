"""Captioners of others compute and generate here as they did there, and ours open there."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import alike, change, vocabulary
from safetensors.torch import load_file

import regard
from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.errors import UserError
from regard.image.processor import ImageProcessor
from regard.interop.folder import load, save
from regard.interop.hf_module import HFModule
from regard.interop.processors import FeatureProcessor
from regard.layers.inputs import ImageBatch
from regard.models.registry import build

TOKENS = 53
HEIGHT, WIDTH = 15, 21
BEGIN, END = 1, 2

ENCODERS: dict[str, dict[str, Any]] = {
    "vit": {"image_size": [HEIGHT, WIDTH], "patch_size": 3, "hidden_size": 30, "num_hidden_layers": 2,
            "num_attention_heads": 3, "intermediate_size": 37},
    "deit": {"image_size": [HEIGHT, WIDTH], "patch_size": 3, "hidden_size": 30, "num_hidden_layers": 2,
             "num_attention_heads": 3, "intermediate_size": 37},
    "swin": {"image_size": [HEIGHT, WIDTH], "patch_size": 2, "embed_dim": 10, "depths": [2, 1], "num_heads": [2, 5],
             "window_size": 3},
}  # fmt: skip
BERT = {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 29,
        "max_position_embeddings": 19}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 22, "n_head": 2, "n_layer": 3, "n_positions": 17},
    "bert": BERT | {"pad_token_id": 0},
    "roberta": BERT | {"pad_token_id": 0},
}
ODD: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    **{f"{encoder}, {decoder}": (encoder, {}, decoder, {}) for encoder in ENCODERS for decoder in DECODERS},
    "one width": ("vit", {"hidden_size": 22, "num_attention_heads": 2}, "gpt2", {}),
    "no qkv bias": ("vit", {"qkv_bias": False}, "bert", {"hidden_act": "relu"}),
    "untied gpt2": ("vit", {}, "gpt2", {"tie_word_embeddings": False, "n_inner": 31}),
    "untied bert": ("vit", {}, "bert", {"tie_word_embeddings": False}),
    "untied roberta": ("vit", {}, "roberta", {"tie_word_embeddings": False, "type_vocab_size": 1}),
    "scaled by layer": ("vit", {}, "gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "unscaled": ("vit", {}, "gpt2", {"scale_attn_weights": False, "activation_function": "relu"}),
}


@torch.no_grad()
def reference(encoder: str, changes: dict[str, Any], decoder: str, other: dict[str, Any]) -> Any:
    """transformers' model with random weights, also where a new one has zeros or ones."""
    import transformers

    sides = [
        transformers.AutoConfig.for_model(encoder, **ENCODERS[encoder] | {"initializer_range": 0.3} | changes),
        transformers.AutoConfig.for_model(
            decoder,
            **DECODERS[decoder] | {"vocab_size": TOKENS, "bos_token_id": BEGIN, "eos_token_id": END} | other,
            initializer_range=0.3,
        ),
    ]
    tokens = {"decoder_start_token_id": BEGIN, "pad_token_id": 0, "eos_token_id": END}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*sides, **tokens)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name.lower() or "ln_" in name or "bias" in name:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def write(model: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        model.save_pretrained(folder)
    vocabulary(TOKENS).save(folder)
    return folder


def opened(folder: Path, missing: str = "") -> Any:
    """In transformers, nothing missing but what begins with `missing`, and nothing unexpected."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened: Any = transformers.VisionEncoderDecoderModel.from_pretrained(folder, output_loading_info=True)
    model, report = opened
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    assert all(missing and name.startswith(missing) for name in report["missing_keys"]), report["missing_keys"]
    return model.eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(3, 3, HEIGHT, WIDTH), torch.randint(4, TOKENS, (3, 11))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    pixels, tokens = inputs()
    return model(pixel_values=pixels, decoder_input_ids=tokens).logits


@pytest.mark.parametrize("case", ODD.values(), ids=ODD)
@torch.no_grad()
def test_they_compute_as_transformers_does_in_both_directions(case: Any, tmp_path: Path) -> None:
    model = reference(*case)
    theirs, ours = write(model, tmp_path / "theirs"), tmp_path / "ours"
    loaded = load(theirs)
    pixels, tokens = inputs()
    expected = logits(model)
    assert alike(loaded.network(ImageBatch(pixels), tokens), expected)
    module = HFModule(loaded.network)
    found = module(pixel_values=pixels, decoder_input_ids=tokens).logits
    assert found is not None and alike(found, expected)

    save(ours, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    assert torch.equal(logits(opened(ours)), expected)
    before, after = load_file(theirs / "model.safetensors"), load_file(ours / "model.safetensors")
    unused = {"decoder.cls.predictions.bias", "decoder.lm_head.bias"} if "tie_word_embeddings" in case[3] else set()
    assert before.keys() - unused <= after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before if name not in unused)
    written = json.loads((ours / "config.json").read_text())
    for side in ("encoder", "decoder"):
        assert written[side].items() >= loaded.config[side].items()


@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_greedy_captions_have_the_same_tokens(decoder: str, tmp_path: Path) -> None:
    model = reference("vit", {}, decoder, {})
    loaded = load(write(model, tmp_path))
    pixels, _ = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.generate(pixels, max_new_tokens=9, do_sample=False, num_beams=1).tolist()
    network: Any = loaded.network
    found = search(network, ImageBatch(pixels), BEGIN, END, DecodeOptions(), 9)
    for (best, *_), row in zip(found, expected, strict=True):
        tokens = row[1:]
        assert best.tokens == (tokens[: tokens.index(END)] if END in tokens else tokens)


@pytest.mark.parametrize(
    ("settings", "ids", "begin"),
    [
        ({"decoder_start_token_id": 5}, {}, 5),  # the file of the settings comes first
        ({"decoder_start_token_id": 5}, {"decoder_start_token_id": None}, 5),
        ({"decoder_start_token_id": END, "pad_token_id": END}, {"decoder_start_token_id": END}, END),
        ({"eos_token_id": [END, 11, 13]}, {}, BEGIN),
        ({"max_length": 6, "num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0}, {}, BEGIN),
    ],
)
@torch.no_grad()
def test_generation_settings_are_those_of_transformers(
    settings: dict[str, Any], ids: dict[str, Any], begin: int, tmp_path: Path
) -> None:
    import transformers

    model = reference("vit", {}, "gpt2", {})
    tokens = {"decoder_start_token_id": BEGIN, "pad_token_id": 0, "eos_token_id": END, "max_length": 10}
    model.generation_config = transformers.GenerationConfig(**(tokens | settings))
    write(model, tmp_path)
    ImageProcessor.default(HEIGHT, WIDTH, 3).save(tmp_path)
    change(tmp_path, **ids)
    ours = regard.load(tmp_path)
    assert ours.processor.target.begin == begin
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = opened(tmp_path).generate(ours.processor.source([image]).pixels).tolist()
    ends = settings.get("eos_token_id", END)
    ends = ends if isinstance(ends, list) else [ends]
    first_end = next((index for index, token in enumerate(expected[1:], 1) if token in ends), len(expected))
    assert list(ours.run(image).tokens) == expected[1:first_end]


VIT = {"family": "vit", "image_size": HEIGHT, "image_width": WIDTH, "patch": 3, "width": 30, "heads": 3, "depth": 2}
CNN = {"family": "cnn", "image_size": HEIGHT, "image_width": WIDTH, "base_width": 8, "depths": (1, 1)}
GPT = {"family": "gpt", "width": 22, "heads": 2, "depth": 2, "max_positions": 17}
ROBERTA = {"family": "bert", "width": 22, "heads": 2, "depth": 2, "pooler": False, "position_offset": 1,
           "token_types": 1, "max_positions": 17, "output_activation": "gelu"}  # fmt: skip
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit, gpt": ("vision-encoder-decoder", {"family": "captioner", "encoder": VIT, "decoder": GPT}),
    "vit with a pooler, roberta": (
        "vision-encoder-decoder", {"family": "captioner", "encoder": VIT | {"pooler": True}, "decoder": ROBERTA}
    ),
    "cnn, gpt": ("regard-captioner", {"family": "captioner", "encoder": CNN, "decoder": GPT}),
    "sliding window": (
        "regard-captioner", {"family": "captioner", "encoder": VIT, "decoder": GPT | {"attention_pattern": "gl"}}
    ),
    "lstm": ("regard-show_attend_tell", {"family": "show_attend_tell", "encoder": CNN, "width": 22}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "model"), OURS.values(), ids=OURS)
@torch.no_grad()
def test_a_network_of_ours_survives_save_and_load(kind: str, model: dict[str, Any], tmp_path: Path) -> None:
    network = build(model, vocabulary=TOKENS).eval()
    for parameter in network.parameters():
        parameter.normal_(std=0.3)
    processor = FeatureProcessor(ImageProcessor.default(HEIGHT, WIDTH, 3), vocabulary(TOKENS).target)
    save(tmp_path / "first", network, processor, {})
    assert json.loads((tmp_path / "first/config.json").read_text())["model_type"] == kind
    loaded = load(tmp_path / "first")
    pixels, tokens = inputs()
    expected = network(ImageBatch(pixels), tokens)
    assert torch.equal(loaded.network(ImageBatch(pixels), tokens), expected)
    save(tmp_path / "second", loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name
    if not kind.startswith("regard-"):
        assert alike(logits(opened(tmp_path / "first", missing="encoder.pooler.")), expected)


@pytest.mark.parametrize(
    ("side", "changes", "message"),
    [
        ("decoder", {"add_cross_attention": False}, "add_cross_attention = False changes the computation"),
        ("decoder", {"model_type": "marian"}, "decoder.model_type = 'marian' is not supported"),
        ("encoder", {"model_type": "clip"}, "encoder.model_type = 'clip' is not supported"),
        ("decoder", {"cross_attention_hidden_size": 31}, "cross_attention_hidden_size is not supported"),
        ("decoder", {"hidden_act": "mish"}, "decoder: hidden_act = 'mish' is not supported"),
        ("encoder", {"hidden_size": -4}, "encoder: hidden_size = -4 should be at least 1"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    side: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(reference("vit", {}, "bert", {}), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(tmp_path, **{side: config[side] | changes})
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_roberta_cannot_start_with_its_padding_token(tmp_path: Path) -> None:
    """Its position would depend on whether a token is padding."""
    write(reference("vit", {}, "roberta", {}), tmp_path)
    change(tmp_path, decoder_start_token_id=0)
    with pytest.raises(UserError, match=r"decoder_start_token_id = 0 is the padding token"):
        load(tmp_path)


def test_arguments_of_the_module_are_checked() -> None:
    module = HFModule(build(OURS["vit, gpt"][1], vocabulary=TOKENS))
    pixels, tokens = inputs()
    with pytest.raises(UserError, match=r"decoder_input_ids is missing"):
        module(pixel_values=pixels)
    with pytest.raises(UserError, match=r"decoder_input_ids holds 53"):
        module(pixel_values=pixels, decoder_input_ids=torch.full_like(tokens, TOKENS))
    with pytest.raises(UserError, match=r"pixel_values has 2 images, decoder_input_ids 3 rows"):
        module(pixel_values=pixels[:2], decoder_input_ids=tokens)


def test_a_component_that_is_no_object_is_refused(tmp_path: Path) -> None:
    write(reference("vit", {}, "gpt2", {}), tmp_path)
    change(tmp_path, encoder="vit")
    with pytest.raises(UserError, match=r"encoder = 'vit': expected the config of a model"):
        load(tmp_path)
