"""Pointing accuracy: which word names which object, and which patches lie on it."""

from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.trace import Trace
from regard.config.options import TokenizerOptions
from regard.data.synthetic.shapes import scene
from regard.image.processor import ImageProcessor
from regard.interop.processors import FeatureProcessor
from regard.layers.image_encoder import SiteGeometry
from regard.models.registry import build
from regard.tasks.caption.pointing import named_objects, on_object, pointing, scene_of, seen_mask
from regard.text.train_tokenizer import train_tokenizer


def test_words_name_the_objects_in_the_order_of_the_caption() -> None:
    pieces = ["a", "red", "circle", "left", "of", "a", "blue", "square"]
    assert named_objects(pieces) == {1: 0, 2: 0, 6: 1, 7: 1}
    assert named_objects(["Ġa", "Ġwhite", "Ġring"]) == {1: 0, 2: 0}
    assert named_objects(["a", "photo"]) == {}


@pytest.mark.parametrize("cell", [1, 3, 4])
def test_a_patch_is_on_an_object_if_its_centre_is(cell: int) -> None:
    mask = np.zeros((12, 24), bool)
    mask[4:8, 12:20] = True
    found = on_object(mask, SiteGeometry(12 // cell, 24 // cell, cell)).reshape(12 // cell, 24 // cell)
    for row in range(12 // cell):
        for column in range(24 // cell):
            assert found[row, column] == mask[int((row + 0.5) * cell), int((column + 0.5) * cell)]


@pytest.mark.parametrize(
    "processor", [ImageProcessor((32, 32)), ImageProcessor((96, 64)), ImageProcessor((48, 80), crop=(33, 52))]
)
def test_masks_are_resized_and_cropped_as_the_image_is(processor: ImageProcessor) -> None:
    """An image of the mask itself goes the same way."""
    drawn = scene_of("shapes:1:test:7")
    assert drawn is not None and drawn.caption == scene(1, "test", 7).caption and scene_of("photo.jpg") is None
    for each in drawn.objects:
        image = np.repeat(np.where(each.mask, 255, 0).astype(np.uint8)[..., None], 3, 2)
        seen = processor([image]).pixels[0].mean(0).numpy() > 0
        assert (seen_mask(each.mask, processor) == seen).all()


@pytest.mark.parametrize("shape", [(32, 32), (24, 40)])
def test_words_that_attend_to_their_objects_point_to_them(shape: tuple[int, int], monkeypatch: Any) -> None:
    """With weights that are the objects' masks the accuracy is 1, with their complements it is 0."""
    drawn = scene(1, "test", 7)
    words = train_tokenizer(iter([drawn.caption]), TokenizerOptions(kind="words", min_frequency=1))
    images = ImageProcessor.default(*shape, 3)
    encoder = dict(family="cnn", image_size=shape[0], image_width=shape[1], base_width=8, depths=[1])
    network: Any = build(dict(family="show_attend_tell", encoder=encoder, width=22), vocabulary=words.size).eval()
    geometry = network.encoder.state_geometry(*shape)
    objects = [on_object(seen_mask(each.mask, images), geometry) for each in drawn.objects]
    named = named_objects(words.pieces(words.encode(drawn.caption)))
    for sign, rate in ((1, 1.0), (-1, 0.0)):
        weights = torch.zeros(1, 1 + len(drawn.caption.split()), geometry.length)
        for word, index in named.items():
            weights[0, word] = sign * torch.from_numpy(objects[index]).float()
        monkeypatch.setattr(Trace, "weights", lambda self, site, weights=weights: weights)
        measured = pointing(network, FeatureProcessor(images, words), drawn)
        assert measured is not None and measured.hits == {"decoder.cross": rate}
        assert measured.random_rate == pytest.approx(np.mean([objects[index].mean() for index in named.values()]))
