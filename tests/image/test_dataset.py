"""Prepared image datasets: pixels as the processor resizes them, read once, and what was skipped."""

from pathlib import Path

import numpy as np
from PIL import Image

from regard.data.files import Record
from regard.data.targets import SingleLabelTargets
from regard.image.dataset import ImageDataset, Source, prepare_images
from regard.image.processor import ImageProcessor
from regard.image.read import read_file

TARGETS = SingleLabelTargets(["cat", "dog"])


def prepared(folder: Path, names: list[str], processor: ImageProcessor) -> ImageDataset:
    records = [Record(str(folder / name), "dog", "", name, name) for name in names]
    return prepare_images(Source(records, ["test"], {}), processor, TARGETS, folder / "cache")


def test_images_are_stored_as_resized(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"a.png": (31, 17), "b.png": (13, 29), "c.png": (19, 19)}
    for name, size in sizes.items():
        Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(tmp_path / name)
    for processor in (ImageProcessor((11, 7)), ImageProcessor(13, crop=(11, 11)), ImageProcessor(None)):
        dataset = prepared(tmp_path, [*sizes], processor)
        assert len(dataset) == 3
        for index, (name, size) in enumerate(sizes.items()):
            pixels = read_file(tmp_path / name).pixels
            assert (dataset.image(index) == processor.resize(pixels)).all()
            assert dataset.original_shape(index) == (*size, 3)
            assert dataset.text(index) == (str(tmp_path / name), "dog")
            assert dataset.target(index).tolist() == [1]


def test_unreadable_images_are_counted(tmp_path: Path) -> None:
    Image.new("L", (5, 7)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"damaged")
    dataset = prepared(tmp_path, ["a.png", "b.png", "c.png"], ImageProcessor.default(5, 5, 1))
    assert len(dataset) == 1 and dataset.report.read == 3
    assert set(dataset.report.skipped) == {"unreadable image", "image not found"}
    assert "b.png" in dataset.report.skipped["unreadable image"].first


def test_a_prepared_dataset_is_opened_again(tmp_path: Path) -> None:
    Image.new("L", (5, 7)).save(tmp_path / "a.png")
    processor = ImageProcessor.default(5, 5, 1)
    first = prepared(tmp_path, ["a.png"], processor)
    (tmp_path / "a.png").unlink()
    assert (prepared(tmp_path, ["a.png"], processor).image(0) == first.image(0)).all()
