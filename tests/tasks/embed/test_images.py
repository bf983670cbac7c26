"""Embeddings of images: those of transformers' hidden states, of every kind of input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calling import Call
from PIL import Image
from transformers import SwinConfig, SwinModel, ViTConfig, ViTForImageClassification, ViTModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import regard
from regard.errors import UserError

PROCESSOR = ViTImageProcessorPil(size={"height": 12, "width": 12})
CONFIG = ViTConfig(
    hidden_size=20, num_hidden_layers=2, num_attention_heads=5, intermediate_size=28, image_size=12, patch_size=4
)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(3)
    paths = [folder / f"{index}.png" for index in range(3)]
    for path, (height, width) in zip(paths, ((12, 12), (17, 23), (31, 13)), strict=True):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return paths


@pytest.mark.parametrize("kind", [ViTModel, ViTForImageClassification])
def test_embeddings_are_pooled_hidden_states(kind: type, photos: list[Path], tmp_path: Path) -> None:
    theirs = kind(CONFIG).eval()
    theirs.save_pretrained(tmp_path / "model")
    PROCESSOR.save_pretrained(tmp_path / "model")
    images: list[Any] = [Image.open(path) for path in photos]
    with torch.no_grad():
        body = theirs if kind is ViTModel else theirs.vit
        states = body(**PROCESSOR(images, return_tensors="pt")).last_hidden_state.numpy()

    model = regard.load(tmp_path / "model")
    np.testing.assert_allclose(model.embed(photos), states.mean(1), atol=1e-5)
    np.testing.assert_allclose(model.embed(photos, pooling="cls"), states[:, 0], atol=1e-5)
    np.testing.assert_allclose(model.embed(photos, pooling="max"), states.max(1), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(model.embed(photos, normalise=True), axis=1), 1, rtol=1e-5)
    for single in (photos[1], str(photos[1]), images[1], np.array(images[1])):
        np.testing.assert_allclose(model.embed(single), states[1].mean(0), atol=1e-5)
    np.testing.assert_allclose(model.run(photos[1], task="embed").vector, states[1].mean(0), atol=1e-5)


def test_the_command_line_embeds_a_folder(photos: list[Path], tmp_path: Path, call: Call) -> None:
    ViTModel(CONFIG).save_pretrained(tmp_path / "model")
    PROCESSOR.save_pretrained(tmp_path / "model")
    vectors = tmp_path / "vectors.npy"
    code, _, _ = call("run", tmp_path / "model", photos[0].parent, "--task", "embed", "--vectors", vectors)
    assert code == 0
    model = regard.load(tmp_path / "model")
    np.testing.assert_allclose(np.load(vectors), model.embed(photos), atol=1e-6)
    trace = model.trace(photos[0])
    assert trace.overlay(tmp_path / "overlay.png").is_file()


def test_what_cannot_be_embedded_is_an_error(photos: list[Path], tmp_path: Path) -> None:
    config = SwinConfig(image_size=12, patch_size=3, window_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2])
    SwinModel(config).save_pretrained(tmp_path / "swin")
    PROCESSOR.save_pretrained(tmp_path / "swin")
    model = regard.load(tmp_path / "swin")
    assert model.embed(photos).shape == (3, 16)
    with pytest.raises(UserError, match=r"pooling = 'cls' needs a \[CLS\] token"):
        model.embed(photos, pooling="cls")
    with pytest.raises(UserError, match=r"input 2 is not an existing file: 'missing\.png'"):
        model.embed([photos[0], "missing.png"])
    with pytest.raises(UserError, match="input 1 is a folder, not an image file"):
        model.embed(photos[0].parent)
