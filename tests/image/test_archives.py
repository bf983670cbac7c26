"""Images in .zip archives: the same pixels as files, and errors that name the archive and the file in it."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.errors import UserError
from regard.image.sources import exists, read_image


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(3).integers(0, 256, (11, 7, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.write(tmp_path / "a.png", "animals/a.png")
        file.writestr("animals/broken.png", b"\x89PNG\r\n\x1a\nbroken")
    return path


def test_an_archived_image_has_the_pixels_of_the_file(archive: Path, tmp_path: Path) -> None:
    name = f"{archive}/animals/a.png"
    assert exists(name) and not exists(f"{archive}/animals/b.png")
    assert np.array_equal(read_image(name).pixels, read_image(str(tmp_path / "a.png")).pixels)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("animals/b.png", "animals/b.png: the archive has no such file"),
        ("animals/broken.png", "broken.png: not an image"),
    ],
)
def test_errors_name_the_archive_and_the_file(archive: Path, member: str, message: str) -> None:
    with pytest.raises(UserError, match=f"photos.zip/.*{message.rpartition('/')[2]}"):
        read_image(f"{archive}/{member}")


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(UserError, match=r"photos.zip: not a readable .zip file"):
        read_image(f"{tmp_path}/photos.zip/a.png")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compression_is_an_error(compression: int, archive: Path) -> None:
    path = archive.with_name("damaged.zip")
    with zipfile.ZipFile(path, "w", compression) as file:
        file.write(archive.with_name("a.png"), "a.png")
    content = bytearray(path.read_bytes())
    content[50:60] = bytes(255 - value for value in content[50:60])  # after the header of the file
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged.zip/a.png: cannot be read"):
        read_image(f"{path}/a.png")


def test_a_changed_archive_is_read_again(archive: Path) -> None:
    name = f"{archive}/animals/a.png"
    before = read_image(name).pixels
    Image.fromarray(255 - before).save(archive.parent / "b.png")
    archive.unlink()
    with zipfile.ZipFile(archive, "w") as file:
        file.write(archive.parent / "b.png", "animals/a.png")
    assert np.array_equal(read_image(name).pixels, 255 - before)
