"""Image encoders of others compute here as they did there, with every head, and ours open there."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change
from image_runs import write_recipe
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.data.synthetic.shapes import SHAPES
from regard.errors import UserError
from regard.image.processor import ImageProcessor
from regard.interop.folder import load, save
from regard.interop.hf_module import HFModule
from regard.interop.processors import FeatureProcessor
from regard.models.deit import DistilledClassifier
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from regard.training.build import prepare_network

SMALL: dict[str, dict[str, Any]] = {
    "vit": {
        "hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 29,
        "image_size": 15, "patch_size": 5,
    },
    "swin": {
        "embed_dim": 6, "depths": [2, 3], "num_heads": [1, 3], "window_size": 3, "image_size": 24, "patch_size": 2,
    },
}  # fmt: skip
SMALL["deit"] = SMALL["vit"]
CLASS = {"vit": "ViT", "deit": "DeiT", "swin": "Swin"}
LABELS = {"id2label": {0: "cat", 1: "dog", 2: "eel"}, "label2id": {"cat": 0, "dog": 1, "eel": 2}}

ODD: dict[str, tuple[str, str, dict[str, Any], tuple[int, int] | None]] = {
    # name: kind, head, config keys, size of the images where it is another than that of the config
    **{f"{kind} {head}": (kind, head, {}, None) for kind in SMALL for head in ("Model", "ForImageClassification")},
    "teacher": ("deit", "ForImageClassificationWithTeacher", LABELS, None),
    "no qkv bias": ("vit", "ForImageClassification", {"qkv_bias": False}, None),
    "other patches, one channel": ("vit", "Model", {"patch_size": 4, "image_size": 17, "num_channels": 1}, None),
    "not square": ("vit", "Model", {"image_size": [15, 25], "patch_size": [5, 5], "hidden_act": "gelu_new"}, None),
    "not square, deit": ("deit", "ForImageClassificationWithTeacher", {"image_size": [20, 10]}, None),
    "interpolated": ("vit", "ForImageClassification", {"layer_norm_eps": 0.03}, (25, 25)),
    "interpolated, not square": ("deit", "Model", {"qkv_bias": False, "pooler_act": "relu"}, (30, 12)),
    "interpolated to smaller": ("vit", "Model", {"patch_size": 3}, (9, 14)),
    "several labels": ("vit", "ForImageClassification", {**LABELS, "problem_type": "multi_label_classification"}, None),
    "regression": ("deit", "ForImageClassification", {"num_labels": 1, "problem_type": "regression"}, None),
    "swin, no qkv bias": ("swin", "ForImageClassification", {"qkv_bias": False, "mlp_ratio": 1.7, **LABELS}, None),
    "swin, other windows": ("swin", "Model", {"window_size": 4, "patch_size": 3, "num_channels": 1}, None),
    "swin, windows need padding": ("swin", "Model", {"window_size": 5, "layer_norm_eps": 0.03}, (26, 33)),
    "swin, images need padding": ("swin", "ForImageClassification", {"patch_size": 4, "image_size": 32}, (29, 43)),
    "swin, odd merging": ("swin", "Model", {"window_size": 2, "depths": [1, 2, 2], "num_heads": [1, 2, 4]}, (22, 26)),
    "swin, one window": ("swin", "Model", {"window_size": 6, "image_size": 24}, None),
    "swin, not square": ("swin", "ForImageClassification", {"image_size": [24, 18], "hidden_act": "relu"}, None),
    "swin, positions": ("swin", "Model", {"use_absolute_embeddings": True}, None),
    "swin, positions interpolated": ("swin", "Model", {"use_absolute_embeddings": True}, (32, 20)),
}


@torch.no_grad()
def reference(kind: str, head: str, **fields: Any) -> Any:
    """transformers' model with random weights, also where a new one has zeros or ones."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(SMALL[kind] | fields))
    model = getattr(transformers, CLASS[kind] + head)(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.3)
    return model


def write(model: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        model.save_pretrained(folder)
    return folder


def opened(folder: Path, name: str) -> Any:
    """In transformers, nothing missing and nothing unexpected."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def pixels(config: Any, size: tuple[int, int] | None) -> Tensor:
    sizes = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
    return torch.randn(3, config.num_channels, *(size or sizes), generator=torch.Generator().manual_seed(5))


NAMES = ("logits", "last_hidden_state", "pooler_output", "cls_logits", "distillation_logits")


@torch.no_grad()
def outputs(model: Any, images: Tensor, **options: Any) -> dict[str, Tensor]:
    found = model(pixel_values=images, **options)
    return {name: value for name in NAMES if (value := getattr(found, name, None)) is not None}


def alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert (found[name] - value).abs().max() <= 1e-5 * value.abs().max(), name


@pytest.mark.parametrize("name", ODD)
def test_parity_in_both_directions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind, head, fields, size = ODD[name]
    theirs = reference(kind, head, **fields)
    images = pixels(theirs.config, size)
    options = {"interpolate_pos_encoding": size is not None}
    expected = outputs(theirs, images, **options)
    loaded = load(write(theirs, tmp_path / "theirs"))
    alike(outputs(HFModule(loaded.network), images, **options), expected)
    save(tmp_path / "ours", loaded.network, loaded.processor, {}, loaded.config)
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert config["model_type"] == kind and config["architectures"] == [CLASS[kind] + head]
    before = load_file(tmp_path / "theirs/model.safetensors")
    after = load_file(tmp_path / "ours/model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(after[key], before[key]) for key in before)
    again = opened(tmp_path / "ours", CLASS[kind] + head)
    alike(outputs(again, images, **options), expected)
    if "id2label" in fields:
        assert loaded.network.labels == ("cat", "dog", "eel")  # type: ignore[attr-defined]
        assert again.config.id2label == theirs.config.id2label and again.config.label2id == theirs.config.label2id


PROCESSOR = FeatureProcessor(ImageProcessor.default(20, 20, 3))
OURS: dict[str, dict[str, Any]] = {
    "vit": dict(family="vit", image_size=20, patch=4, width=22, heads=2, depth=2, feedforward=29, drop_path=0.25),
    "deit": dict(family="deit", image_size=20, patch=4, width=22, heads=2, depth=2, feedforward=29),
    "swin": dict(family="swin", image_size=20, patch=2, embedding_width=6, depths=[2, 2], heads=[1, 2], window=3),
    "hybrid": dict(family="hybrid", image_size=20, base_width=6, width=22, heads=2, depth=2),
    "cnn": dict(family="cnn", image_size=20, base_width=6),
}


@pytest.mark.parametrize(
    ("name", "head"),
    [*((name, head) for name in OURS for head in ("Model", "ForImageClassification")),
     ("deit", "ForImageClassificationWithTeacher")],
)  # fmt: skip
def test_a_new_network_is_saved_and_opened(name: str, head: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    pooler = {"pooler": True} if head == "Model" and name in ("vit", "deit") else {}
    network: Any = build(OURS[name] | pooler)
    if head == "ForImageClassification":
        network = Classifier(network, ["a", "b", "c"])
    elif head != "Model":
        network = DistilledClassifier(network, ["a", "b", "c"])
    save(tmp_path, network.eval(), PROCESSOR, {})
    loaded = load(tmp_path)
    assert loaded.network.config == network.config
    images = torch.randn(2, 3, 20, 20)
    expected = outputs(HFModule(network), images)
    alike(outputs(HFModule(loaded.network), images), expected)
    if name in CLASS:
        theirs = outputs(opened(tmp_path, CLASS[name] + head), images)  # of classifiers without states
        alike(expected, theirs)
    else:
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["model_type"] == f"regard-{name}"


def test_a_head_for_regression_is_stored_in_the_units_of_its_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = DistilledClassifier(build(OURS["deit"]), ["age"], problem_type="regression", scale=64.0).eval()  # type: ignore[arg-type]
    save(tmp_path, network, PROCESSOR, {})
    images = torch.randn(2, 3, 20, 20)
    expected = outputs(HFModule(network), images)
    alike(outputs(HFModule(load(tmp_path).network), images), expected)
    alike(expected, outputs(opened(tmp_path, "DeiTForImageClassificationWithTeacher"), images))


def test_two_classes_of_one_name_have_their_ids(tmp_path: Path) -> None:
    """ImageNet's 134 and 517 are both "crane"; the names are written back as they were."""
    names = {"id2label": {0: "crane", 1: "eel", 2: "crane"}, "label2id": {"crane": 2, "eel": 1}}
    loaded = load(write(reference("vit", "ForImageClassification", **names), tmp_path / "theirs"))
    network: Any = loaded.network
    assert network.labels == ("crane (0)", "eel", "crane (2)")
    save(tmp_path / "ours", network, loaded.processor, {}, loaded.config)
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert written["id2label"] == {"0": "crane", "1": "eel", "2": "crane"}


def test_a_backbone_without_pooler_is_opened_and_saved_without(tmp_path: Path) -> None:
    import transformers

    model = transformers.ViTModel(transformers.ViTConfig(**SMALL["vit"]), add_pooling_layer=False)
    loaded = load(write(model, tmp_path / "theirs"))
    network: Any = loaded.network
    assert network.pooler is None and not network.config.pooler
    save(tmp_path / "ours", network, loaded.processor, {}, loaded.config)
    assert load(tmp_path / "ours").network.config == network.config  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "head", "new_head"),
    [
        ("vit", "ForImageClassification", "ForImageClassification"),
        ("swin", "ForImageClassification", "ForImageClassification"),
        ("deit", "ForImageClassification", "ForImageClassificationWithTeacher"),
        ("deit", "ForImageClassificationWithTeacher", "ForImageClassificationWithTeacher"),
    ],
)
def test_a_published_classifier_gets_a_head_for_other_labels(
    kind: str, head: str, new_head: str, tmp_path: Path
) -> None:
    folder = write(reference(kind, head, **LABELS), tmp_path / "theirs")
    tables = f'[data]\nsynthetic = "shapes"\ntrain = 61\n[model]\nfrom = "{folder}"\nnew_head = true'
    loaded = prepare_network(write_recipe(tmp_path / "tuned.toml", "classify", tables, "", 2))
    network: Any = loaded.network.eval()
    assert network.labels == tuple(sorted(SHAPES))
    body: Any = load(folder).network
    assert all(torch.equal(*pair) for pair in zip(network.body.parameters(), body.body.parameters(), strict=True))
    save(tmp_path / "ours", network, loaded.processor, {}, loaded.config)
    again = opened(tmp_path / "ours", CLASS[kind] + new_head)
    assert list(again.config.id2label.values()) == sorted(SHAPES)
    images = pixels(again.config, None)
    alike(outputs(HFModule(network), images), outputs(again, images))


def test_a_processor_of_other_channels_is_refused(tmp_path: Path) -> None:
    folder = write(reference("vit", "Model", num_channels=1), tmp_path)
    (folder / "preprocessor_config.json").write_text('{"size": 15}')
    with pytest.raises(UserError, match=r"image_mean .* has 3 values, but num_channels in config\.json is 1"):
        load(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 15, "image_mean": [0.5], "image_std": [0.5]}')
    load(folder)


def test_masks_saved_as_buffers_are_ignored(tmp_path: Path) -> None:
    folder = write(reference("swin", "Model"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layers.0.blocks.0.attention.self.relative_position_index"] = torch.zeros(9, 9, dtype=torch.int64)
    save_file(tensors, folder / "model.safetensors")
    load(folder)


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("vit", {"pooler_output_size": 11}, "pooler_output_size = 11 changes the computation"),
        ("vit", {"head_dim": 5}, "head_dim = 5 changes the computation"),
        ("vit", {"patch_size": [5, 3]}, "only square patches"),
        ("vit", {"patch_size": 0}, "patch_size = 0 should be at least 1"),
        ("vit", {"patch_size": 16}, "image_size 15 × 15 is smaller than patch 16"),
        ("vit", {"image_size": [15, "a"]}, "image_size = 'a' should be of type int"),
        ("vit", {"image_size": [15, 15, 15]}, "image_size"),
        ("vit", {"hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
        ("vit", {"qkv_bias": 1}, "qkv_bias = 1 should be true or false"),
        ("vit", {"architectures": ["ViTForMaskedImageModeling"]}, "architectures = 'ViTForMaskedImageModeling'"),
        ("swin", {"depths": 3}, "depths = 3 should be of type list"),
        ("swin", {"depths": [2, "a"]}, "model.depths = 'a'"),
        ("swin", {"depths": [2]}, "depths has 1 stages, but heads 2"),
        ("swin", {"num_heads": [1, 5]}, "width 12 of a stage is not a multiple of its heads 5"),
        ("swin", {"window_size": 4}, r"mis-shaped: .*relative_position_bias_table \(25, 1\) instead of \(49, 1\)"),
        ("swin", {"mlp_ratio": 0}, "feedforward_ratio 0 leaves no hidden units"),
    ],
)
def test_what_is_not_supported_is_named(kind: str, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(reference(kind, "Model"), tmp_path)
    change(folder, **keys)
    with pytest.raises(UserError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 20, 20), r"pixel_values should be floats \(batch, 3, height, width\)"),
        ((3, 20, 20), "pixel_values should be floats"),
        ((2, 3, 3, 20), "3 × 20 pixels, less than one patch"),
        ((2, 3, 24, 20), "positions are for 20 × 20: .*interpolate_pos_encoding=True"),
    ],
)
def test_images_that_do_not_fit_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        HFModule(build(OURS["vit"]))(pixel_values=torch.zeros(shape))


def test_a_missing_input_is_named() -> None:
    with pytest.raises(UserError, match="pixel_values is missing: this model takes images"):
        HFModule(build(OURS["cnn"]))(input_ids=torch.ones(1, 1, dtype=torch.int64))
