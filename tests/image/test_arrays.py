"""Array files: npz and IDX give the same images and labels; damaged ones are errors that name the file."""

import gzip
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import UserError
from regard.image.arrays import is_array_file, read_arrays
from regard.image.sources import exists, read_image


def images(count: int = 7, channels: int = 0) -> np.ndarray:
    shape = (count, 5, 3, channels) if channels else (count, 5, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y")])
def test_npz(channels: int, names: tuple[str, str], tmp_path: Path) -> None:
    expected = images(channels=channels)
    path = tmp_path / "a.npz"
    arrays: dict[str, Any] = dict(zip(names, (expected, np.arange(7, dtype=np.uint8)), strict=True))
    np.savez_compressed(path, **arrays)
    found = read_arrays(path)
    assert (found.images == expected.reshape(7, 5, 3, -1)).all()
    assert found.labels == [str(index) for index in range(7)]
    assert (read_image(f"{path}#4").pixels == expected[4].reshape(5, 3, -1)).all()
    with pytest.raises(UserError, match="7 images"):
        read_image(f"{path}#7")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(suffix: str, tmp_path: Path) -> None:
    pack = gzip.compress if suffix else bytes
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(pack(idx(images())))
    assert is_array_file(path) and read_arrays(path).labels is None
    (tmp_path / f"train-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(np.arange(7, dtype=np.uint8))))
    found = read_arrays(path)
    assert (found.images[..., 0] == images()).all()
    assert found.labels == [str(index) for index in range(7)]


def test_labels_may_be_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=images(2), labels=np.array(["cat", "dog"]))
    assert read_arrays(tmp_path / "a.npz").labels == ["cat", "dog"]


@pytest.mark.parametrize(
    "arrays",
    [
        {"pictures": images()},
        {"images": images().astype(float)},
        {"images": images()[0]},
        {"images": images()[:0]},
        {"images": images(), "labels": np.arange(3)},
        {"images": images(), "labels": np.ones(7)},
        {"images": images(), "labels": np.arange(7)[:, None]},
        {"images": images(), "labels": np.full(7, -1, np.int32).view("<U1")},  # beyond Unicode
        {"images": np.asfortranarray(images())},
    ],
)
def test_arrays_that_are_no_images_are_errors(arrays: dict, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([{}, []], object))
    with pytest.raises(UserError, match="object"):
        read_arrays(tmp_path / "a.npz")


def test_a_file_that_claims_to_be_huge_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for shape, message in (((10**6, 10**4, 10**4), "over the limit"), ((-1, 4, 4), "damaged file .an array of shape")):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("images.npy", "w") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
            file.write(bytes(64))
        with pytest.raises(UserError, match=message):
            read_arrays(tmp_path / "a.npz")
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 10**6, 10**4, 10**4))
    with pytest.raises(UserError, match="over the limit"):
        read_arrays(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_files_are_errors(compression: int, tmp_path: Path) -> None:
    stored = tmp_path / "stored.npz"
    np.savez(stored, images=images(), labels=np.arange(7))
    whole = tmp_path / "whole.npz"
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(whole, "w", compression) as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    content = whole.read_bytes()
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(60):
        data = bytearray(content[: int(rng.integers(0, len(content) + 1))])
        for _ in range(int(rng.integers(0, 5))):
            if data:
                data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
        path = tmp_path / "damaged.npz"
        path.write_bytes(bytes(data))
        message = ""
        try:
            read_arrays(path)
        except UserError as error:
            message = str(error)
        assert not message or path.name in message
        refused += bool(message)
    assert refused > 40


def test_names_of_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=images())
    assert exists(f"{tmp_path}/a.npz#3") and exists("shapes:1:train:17")
    assert not exists(f"{tmp_path}/b.npz#3") and not exists("shapes:1:dev:17")
    assert (read_image("shapes:1:train:17").pixels == read_image("shapes:1:train:17").pixels).all()
    assert (read_image("shapes:1:train:17").pixels != read_image("shapes:1:test:17").pixels).any()
