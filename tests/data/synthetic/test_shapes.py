"""Synthetic scenes: label, caption and masks agree with the pixels, and every scene follows from its index alone."""

import numpy as np
import pytest

from regard.data.synthetic.shapes import COLOURS, SHAPES, SIZE, scene

SCENES = [scene(1, "train", index) for index in range(300)]


def test_a_scene_is_a_function_of_seed_split_and_index() -> None:
    again = scene(1, "train", 17)
    assert (again.image == SCENES[17].image).all() and again.caption == SCENES[17].caption
    for other in (scene(2, "train", 17), scene(1, "test", 17), scene(1, "train", 18)):
        assert (other.image != again.image).any()


def test_masks_have_the_colour_of_their_objects() -> None:
    for each in SCENES:
        for thing in each.objects:
            colour = each.image[thing.mask].mean(0)
            nearest = min(COLOURS, key=lambda name: np.abs(colour - COLOURS[name]).sum())
            assert nearest == thing.colour
        if len(each.objects) == 2:
            assert not (each.objects[0].mask & each.objects[1].mask).any()


def test_the_label_is_the_shape_of_the_largest_object() -> None:
    for each in SCENES:
        extents = [np.ptp(np.argwhere(thing.mask), axis=0).max() for thing in each.objects]
        assert each.label == each.objects[int(np.argmax(extents))].shape
    assert {each.label for each in SCENES} == {*SHAPES}


def test_the_caption_names_objects_and_their_relation() -> None:
    for each in SCENES:
        names = [str(thing) for thing in each.objects]
        if len(names) == 1:
            assert each.caption == names[0]
            continue
        (top, left), (bottom, right) = (np.argwhere(thing.mask).mean(0) for thing in each.objects)
        relation = each.caption.removeprefix(names[0]).removesuffix(names[1])
        assert (relation == " left of " and left < right) or (relation == " above " and top < bottom)
    assert len({each.caption for each in SCENES}) > 200


@pytest.mark.parametrize("size", [24, 61])
def test_other_sizes_show_the_same_scene(size: int) -> None:
    small, large = scene(1, "train", 5), scene(1, "train", 5, size)
    assert large.image.shape == (size, size, 3) and small.caption == large.caption
    for thing, other in zip(small.objects, large.objects, strict=True):
        assert abs(thing.mask.mean() - other.mask.mean()) < 0.02
    assert small.image.shape == (SIZE, SIZE, 3)
