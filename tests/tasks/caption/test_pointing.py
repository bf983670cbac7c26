"""Pointing accuracy: which word names which object, and which patches lie on it."""

import numpy as np
import pytest

from regard.data.synthetic.shapes import scene
from regard.layers.image_encoder import SiteGeometry
from regard.tasks.caption.pointing import named_objects, on_object, scene_of


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


def test_masks_follow_the_size_of_the_image() -> None:
    small, large = scene_of("shapes:1:test:7", 32), scene_of("shapes:1:test:7", 96)
    assert small is not None and large is not None and scene_of("photo.jpg", 32) is None
    assert small.caption == large.caption == scene(1, "test", 7).caption
    for one, other in zip(small.objects, large.objects, strict=True):
        assert other.mask.mean() == pytest.approx(one.mask.mean(), abs=0.02)
