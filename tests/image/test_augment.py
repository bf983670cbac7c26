"""Augmentation is a function of (seed, sample, epoch); each operation does what its paper says."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from regard.config.options import ImageAugmentOptions
from regard.errors import UserError
from regard.image import rand_augment
from regard.image.augment import ERASED_AREA, Augmentation

SIZE = (13, 17)
ALL = dict(
    horizontal_flip=0.5, crop_padding=3, min_crop_area=0.4, rand_augment=2, random_erasing=0.5
)  # all that changes an image by itself


def stored(count: int = 5, size: tuple[int, int] = SIZE, channels: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, channels), np.uint8) for _ in range(count)]


def augmented(options: dict, samples: list[int], epoch: int = 2, seed: int = 1, channels: int = 3) -> torch.Tensor:
    images = stored(10, channels=channels)
    augment = Augmentation(ImageAugmentOptions(**options), seed)
    return augment([images[sample] for sample in samples], samples, epoch, SIZE)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_depends_on_seed_sample_and_epoch_alone(name: str, channels: int) -> None:
    options = {name: ALL[name]}
    samples = [7, 2, 5, 9, 0, 1, 8]
    together = augmented(options, samples, channels=channels)
    for index, sample in enumerate(samples):
        assert (augmented(options, [sample], channels=channels)[0] == together[index]).all()
    assert (augmented(options, samples, epoch=3, channels=channels) != together).any()
    assert (augmented(options, samples, seed=2, channels=channels) != together).any()
    assert together.shape == (7, channels, *SIZE) and together.amin() >= 0 and together.amax() <= 255


@pytest.mark.parametrize("least", [0.0, 1 - 2**-53])
def test_the_extreme_draws_are_possible(least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest double below 1 is 1 as a float32: an index beyond the end."""
    monkeypatch.setattr(Augmentation, "_draws", lambda self, samples, epoch: np.full((len(samples), 22), least))
    for options in ({name: value} for name, value in ALL.items()):
        assert augmented(options, [3, 1]).shape == (2, 3, *SIZE)
    assert (augmented({"crop_padding": 2}, [3])[0, :, 2:, 2:] != 0).any()


def test_without_options_an_image_is_unchanged() -> None:
    expected = np.stack(stored(3)).transpose(0, 3, 1, 2)
    assert (augmented({}, [0, 1, 2]).numpy() == expected[:3]).all()


def test_flips_and_shifts_move_pixels() -> None:
    images = torch.from_numpy(np.stack(stored(10)).transpose(0, 3, 1, 2)).float()
    samples = list(range(10))
    assert (augmented({"horizontal_flip": 1.0}, samples) == images.flip(3)).all()
    shifted = augmented({"crop_padding": 2}, samples)
    for image, result in zip(images, shifted, strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
        crops = [padded[:, y : y + 13, x : x + 17] for y in range(5) for x in range(5)]
        assert sum(bool((crop == result).all()) for crop in crops) == 1


def test_erased_boxes_have_one_colour_and_the_published_area() -> None:
    images = torch.from_numpy(np.stack(stored(10)).transpose(0, 3, 1, 2)).float()
    erased = augmented({"random_erasing": 1.0}, list(range(10)))
    for before, after in zip(images, erased, strict=True):
        changed = (before != after).any(0)
        rows, columns = changed.any(1).nonzero(), changed.any(0).nonzero()
        box = after[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert (box == box[:, :1, :1]).all()
        assert ERASED_AREA[0] / 2 <= box[0].numel() / before[0].numel() <= 1.2 * ERASED_AREA[1]


@pytest.mark.parametrize("options", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_targets_are_mixed_as_the_images_are(options: dict) -> None:
    augment = Augmentation(ImageAugmentOptions(**options), 1)
    samples = list(range(9))
    constant = [np.full((*SIZE, 3), 10 * sample, np.uint8) for sample in samples]
    mixed = augment(constant, samples, 2, SIZE).mean((1, 2, 3))
    expected = augment.mix_targets(10 * torch.arange(9).float(), samples, 2, SIZE)
    torch.testing.assert_close(mixed, expected, atol=1e-3, rtol=0)
    one_hot = torch.nn.functional.one_hot(torch.tensor(samples) % 3, 3).float()
    targets = augment.mix_targets(one_hot, samples, 2, SIZE)
    torch.testing.assert_close(targets.sum(1), torch.ones(9))
    assert ((targets > 0).sum(1) <= 2).all() and (targets != one_hot).any()


def test_repeated_samples_are_changed_in_different_ways() -> None:
    augment = Augmentation(ImageAugmentOptions(crop_padding=4, repeats=3), 1)
    samples = augment.repeat([4, 7, 2, 9, 1, 3, 5])
    assert samples == [4, 4, 4, 7, 7, 7, 2]
    images = stored(10)
    changed = augment([images[sample] for sample in samples], samples, 0, SIZE)
    assert len({each.numpy().tobytes() for each in changed}) == len(samples)


def test_resized_crops_are_parts_of_the_image() -> None:
    rows, columns = np.mgrid[:40, :60]
    image = np.stack([rows * 6, columns * 4, rows * 0], -1).astype(np.uint8)
    augment = Augmentation(ImageAugmentOptions(min_crop_area=0.3), 5)
    for sample in range(20):
        crop = augment([image], [sample], 0, SIZE)[0]
        assert crop.shape == (3, *SIZE)
        assert crop[0].diff(dim=0).min() > 0 and crop[1].diff(dim=1).min() > 0  # the gradients remain
        area = (crop[0].max() - crop[0].min()) / 234 * (crop[1].max() - crop[1].min()) / 236
        assert 0.2 <= area <= 1


def test_operations_equal_those_of_pillow() -> None:
    pixels = stored(1, (31, 29))[0] // 2 + 40
    image = Image.fromarray(pixels)
    batch = torch.from_numpy(pixels.transpose(2, 0, 1)[None].copy()).float()
    strength = torch.tensor([0.5])

    def difference(result: torch.Tensor, expected: Image.Image) -> float:
        return float((result[0].permute(1, 2, 0).clamp(0, 255) - torch.from_numpy(np.array(expected))).abs().max())

    assert difference(rand_augment.autocontrast(batch, strength), ImageOps.autocontrast(image)) <= 1
    assert difference(rand_augment.equalize(batch, strength), ImageOps.equalize(image)) == 0
    assert difference(rand_augment.solarize(batch, strength), ImageOps.solarize(image, 128)) == 0
    assert difference(rand_augment.posterize(batch, strength), ImageOps.posterize(image, 6)) == 0


def test_warps_are_affine() -> None:
    images = torch.from_numpy(np.stack(stored(3, (11, 15))).transpose(0, 3, 1, 2)).float()
    pixels = torch.tensor([[[1.0, 0, 2], [0, 1, -3]]]).expand(3, 2, 3)
    moved = rand_augment.warp(images, pixels)
    torch.testing.assert_close(moved[:, :, 3:, :-2], images[:, :, :-3, 2:], atol=1e-3, rtol=0)
    assert (moved[:, :, :3] - rand_augment.GREY).abs().max() < 1e-3
    quarter = torch.tensor([[[0.0, -1, 0], [1, 0, 0]]]).expand(3, 2, 3)
    square = images[..., :11]
    torch.testing.assert_close(rand_augment.warp(square, quarter), square.rot90(1, (2, 3)), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "options",
    [{"horizontal_flip": 1.5}, {"crop_padding": -1}, {"min_crop_area": 0.0}, {"rand_augment_magnitude": 11.0},
     {"mixup": -0.1}, {"repeats": 0}, {"rand_augment": 1000}],
)  # fmt: skip
def test_impossible_options_are_errors(options: dict) -> None:
    with pytest.raises(UserError, match=f"augment.{next(iter(options))}"):
        ImageAugmentOptions(**options)
