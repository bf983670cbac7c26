"""Image processors equal those of transformers on the same config; configs are written back as they were read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from regard.data.processor import InputProcessor
from regard.errors import UserError
from regard.image.processor import FILE, SHARED_FILE, ImageProcessor

CONFIGS = {
    "vit": (ViTImageProcessorPil, {"size": {"height": 37, "width": 53}}),
    "vit-integer": (ViTImageProcessorPil, {"size": 31, "resample": 3}),
    "not-normalised": (ViTImageProcessorPil, {"size": {"height": 23, "width": 23}, "do_normalize": False}),
    "grey-means": (ViTImageProcessorPil, {"size": {"height": 23, "width": 19}, "image_mean": 0.3, "image_std": 0.7}),
    "unchanged": (ViTImageProcessorPil, {"do_resize": False, "do_rescale": False, "do_normalize": False}),
    "other-factor": (DeiTImageProcessorPil, {"size": 21, "crop_size": 19, "rescale_factor": 0.01, "resample": 0}),
    "not-rescaled": (ViTImageProcessorPil, {"size": {"height": 23, "width": 19}, "do_rescale": False}),
    "statistics": (
        ViTImageProcessorPil,
        {"size": {"height": 29, "width": 31}, "image_mean": [0.4, 0.5, 0.3], "image_std": [0.2, 0.3, 0.7]},
    ),
    "deit": (DeiTImageProcessorPil, {"size": {"height": 41, "width": 43}, "crop_size": {"height": 37, "width": 31}}),
    "shortest": (
        DeiTImageProcessorPil,
        {"size": {"shortest_edge": 41}, "crop_size": {"height": 37, "width": 37}, "resample": 2},
    ),
    "padded-crop": (
        DeiTImageProcessorPil,
        {"size": {"height": 17, "width": 47}, "crop_size": {"height": 24, "width": 31}},
    ),
}


def random_image(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(67, 71), (13, 101), (37, 53)])
def test_pixels_equal_those_of_transformers(name: str, size: tuple[int, int]) -> None:
    kind, options = CONFIGS[name]
    reference = kind(**options)
    image = random_image(*size)
    expected = reference(image, return_tensors="np", input_data_format="channels_last")["pixel_values"]
    processor = ImageProcessor.from_config(json.loads(reference.to_json_string()))
    pixels = processor([image]).pixels.numpy()
    assert pixels.shape == expected.shape
    np.testing.assert_allclose(pixels, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_processor_is_read_by_transformers_as_the_same(name: str, tmp_path: Path) -> None:
    kind, options = CONFIGS[name]
    image = random_image(45, 38)
    processor = ImageProcessor.from_config(json.loads(kind(**options).to_json_string()))
    processor.save(tmp_path)
    again = kind.from_pretrained(tmp_path)
    expected = again(image, return_tensors="np", input_data_format="channels_last")["pixel_values"]
    np.testing.assert_allclose(processor([image]).pixels.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert ImageProcessor.load(tmp_path).content() == processor.content()


def test_a_file_of_several_processors_has_that_of_images(tmp_path: Path) -> None:
    """As transformers writes a TrOCRProcessor; it is read before a file of its own."""
    config = {"size": 19, "image_mean": [0.4, 0.3, 0.2], "image_processor_type": "ViTImageProcessor"}
    (tmp_path / SHARED_FILE).write_text(json.dumps({"image_processor": config, "processor_class": "TrOCRProcessor"}))
    (tmp_path / FILE).write_text(json.dumps({"size": 23}))
    assert ImageProcessor.load(tmp_path).content() == ImageProcessor.from_config(config).content()
    (tmp_path / SHARED_FILE).write_text(json.dumps({"processor_class": "TrOCRProcessor"}))
    assert ImageProcessor.load(tmp_path).size == (23, 23)
    (tmp_path / SHARED_FILE).write_text(json.dumps({"image_processor": {"resample": 9}}))
    with pytest.raises(UserError, match=rf"{SHARED_FILE}: resample = 9"):
        ImageProcessor.load(tmp_path)


@pytest.mark.parametrize("kind", [ViTImageProcessorPil, DeiTImageProcessorPil])
@pytest.mark.parametrize("missing", [{}, {"resample": None, "size": None, "do_center_crop": None, "image_mean": None}])
def test_keys_that_a_file_does_not_have_are_those_of_its_type(kind: Any, missing: dict) -> None:
    config = {"image_processor_type": kind.__name__.removesuffix("Pil"), **missing}
    expected = ImageProcessor.from_config(json.loads(kind().to_json_string()))
    assert ImageProcessor.from_config(config).content() == expected.content()


@pytest.mark.parametrize(
    "config", [{"image_mean": [0.5], "image_std": [0.3]}, {"image_mean": [7], "do_normalize": False}]
)
def test_one_mean_is_a_grey_image(config: dict) -> None:
    assert ImageProcessor.from_config({"size": 11} | config)([random_image(5, 7)]).pixels.shape == (1, 1, 11, 11)


def test_unknown_keys_are_written_back(tmp_path: Path) -> None:
    config = {"size": 19, "feature_extractor_type": "ViTFeatureExtractor", "model_input_names": ["pixel_values"]}
    (tmp_path / FILE).write_text(json.dumps(config))
    processor = ImageProcessor.load(tmp_path)
    assert isinstance(processor, InputProcessor)
    written = processor.to_config()
    assert written["feature_extractor_type"] == "ViTFeatureExtractor"
    assert written["model_input_names"] == ["pixel_values"]
    assert written["size"] == {"height": 19, "width": 19}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"do_pad": True}, "do_pad"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"crop_pct": 0.9}, "crop_pct"),
        ({"resample": 9}, "resample"),
        ({"image_mean": [0.5, "x", 1]}, "image_mean"),
        ({"image_mean": [0.5], "image_std": [0.5, 0.5, 0.5]}, "do not fit"),
        ({"image_std": [0.5, 0.0, 0.1]}, "image_std"),
        ({"size": {"longest_edge": 30}}, "size"),
        ({"size": {"height": 10**9, "width": 3}}, "size"),
        ({"size": {"height": "7", "width": 3}}, "size"),
        ({"rescale_factor": "x"}, "rescale_factor"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 3}}, "crop_size"),
    ],
)
def test_what_is_not_supported_is_an_error_that_names_the_key(config: dict, problem: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(config))
    with pytest.raises(UserError, match=problem) as error:
        ImageProcessor.load(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{", "3", "null", '{"size": []}'])
def test_a_broken_file_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError):
        ImageProcessor.load(tmp_path)


def test_without_a_file_the_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"image_size": 29, "num_channels": 1}))
    processor = ImageProcessor.load(tmp_path)
    assert processor([random_image(31, 17)]).pixels.shape == (1, 1, 29, 29)
    (tmp_path / "config.json").write_text(json.dumps({"image_size": [29, 31], "num_channels": 5}))
    with pytest.raises(UserError, match="num_channels = 5 is not supported"):
        ImageProcessor.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 29}))
    with pytest.raises(UserError, match="image_size"):
        ImageProcessor.load(tmp_path)


def test_channels_follow_the_statistics() -> None:
    grey = ImageProcessor.default(11, 13, 1)
    colour = ImageProcessor.default(11, 13, 3)
    for channels in (1, 3):
        image = random_image(11, 13, channels)
        assert grey([image]).pixels.shape == (1, 1, 11, 13)
        assert colour([image]).pixels.shape == (1, 3, 11, 13)


def test_other_images_of_a_batch_change_nothing() -> None:
    processor = ImageProcessor((17, 19), crop=(13, 11))
    images = [random_image(23, 29, seed=1), random_image(31, 7, seed=2), random_image(5, 5, 1, seed=3)]
    together = processor(images).pixels
    for image, pixels in zip(images, together, strict=True):
        assert (processor([image]).pixels[0] == pixels).all()


def test_images_of_several_sizes_need_a_resize() -> None:
    processor = ImageProcessor(None)
    with pytest.raises(UserError, match="different sizes"):
        processor([random_image(3, 5), random_image(5, 3)])


def test_a_narrow_image_does_not_exhaust_memory() -> None:
    with pytest.raises(UserError, match="too narrow"):
        ImageProcessor(256)([np.zeros((1, 300_000, 3), np.uint8)])


@pytest.mark.parametrize(("height", "width"), [(37, 53), (53, 37), (11, 90), (5, 7)])
def test_the_visible_box_is_what_the_crop_keeps(height: int, width: int) -> None:
    """Without resizing, the box says which pixels are kept, and where zeros are added."""
    image = 1 + np.arange(height * width, dtype=np.uint32).reshape(height, width, 1)
    processor = ImageProcessor(None, (13, 17), mean=(0.5,), std=(0.5,))
    left, top, right, bottom = map(int, processor.visible_box(height, width))
    padded = np.pad(image, ((50, 50), (50, 50), (0, 0)))
    expected = padded[50 + top : 50 + bottom, 50 + left : 50 + right]
    np.testing.assert_array_equal(processor.centre(image), expected)


@pytest.mark.parametrize("size", [(40, 30), 24])
def test_the_visible_box_scales_with_the_image(size: tuple[int, int] | int) -> None:
    processor = ImageProcessor(size, (20, 16))
    once = processor.visible_box(50, 70)
    np.testing.assert_allclose(processor.visible_box(100, 140), [2 * edge for edge in once], atol=4)
    assert ImageProcessor(size).visible_box(50, 70) == (0, 0, 70, 50)
