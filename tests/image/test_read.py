"""Every kind of image file gives the right pixels, or an error that names it; damaged files never crash."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.errors import UserError
from regard.image.read import MAX_PIXELS, from_value, list_images, read_file
from regard.image.sources import exists, read_image

HEIGHT, WIDTH = 13, 17


def gradient() -> np.ndarray:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([rows * 19, columns * 15, (rows + columns) * 8], -1).astype(np.uint8)


def saved(path: Path, image: Image.Image, **options) -> np.ndarray:
    image.save(path, **options)
    return read_file(path).pixels


def test_grey_and_colour(tmp_path: Path) -> None:
    colour = gradient()
    assert (saved(tmp_path / "a.png", Image.fromarray(colour)) == colour).all()
    assert (saved(tmp_path / "b.png", Image.fromarray(colour[..., 0])) == colour[..., :1]).all()
    bits = saved(tmp_path / "c.png", Image.fromarray(colour[..., 0] > 99))
    assert (bits[..., 0] == 255 * (colour[..., 0] > 99)).all()


def test_a_palette_is_resolved(tmp_path: Path) -> None:
    image = Image.fromarray(gradient()).quantize(11)
    assert (saved(tmp_path / "a.png", image) == np.asarray(image.convert("RGB"))).all()


def test_sixteen_bits_keep_the_high_byte(tmp_path: Path) -> None:
    values = (np.arange(HEIGHT * WIDTH, dtype=np.uint16) * 296).reshape(HEIGHT, WIDTH)
    pixels = saved(tmp_path / "a.png", Image.fromarray(values))
    assert (pixels[..., 0] == values // 256).all()
    for suffix in ("tiff", "pgm"):
        assert (saved(tmp_path / f"a.{suffix}", Image.fromarray(values))[..., 0] == values // 256).all()


def test_thirty_two_bits_are_refused(tmp_path: Path) -> None:
    for dtype in (np.int32, np.float32):
        with pytest.raises(UserError, match=r"a\.tiff: has 32 bits per pixel"):
            saved(tmp_path / "a.tiff", Image.fromarray(gradient()[..., 0].astype(dtype)))


def test_the_channels_are_those_of_the_file(tmp_path: Path) -> None:
    colour = Image.fromarray(gradient())
    modes = {"1": 1, "L": 1, "LA": 2, "RGB": 3, "P": 3, "RGBA": 4}
    for mode, channels in modes.items():
        colour.convert(mode).save(tmp_path / "a.png")
        assert read_file(tmp_path / "a.png").channels == channels, mode
    colour.convert("CMYK").save(tmp_path / "a.jpg")
    assert read_file(tmp_path / "a.jpg").channels == 3


def test_cmyk_is_converted(tmp_path: Path) -> None:
    image = Image.fromarray(gradient()).convert("CMYK")
    pixels = saved(tmp_path / "a.tiff", image)
    assert (pixels == np.asarray(image.convert("RGB"))).all()
    assert saved(tmp_path / "a.jpg", image).shape == (HEIGHT, WIDTH, 3)


def test_transparency_is_blended_with_white(tmp_path: Path) -> None:
    grey = gradient()[..., 0]
    alpha = np.zeros_like(grey)
    alpha[:, 5:] = 255
    pixels = saved(tmp_path / "a.png", Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]))
    assert (pixels[:, :5] == 255).all() and (pixels[:, 5:, 0] == grey[:, 5:]).all()
    colour = np.concatenate([gradient(), alpha[..., None]], 2)
    for path in ("b.png", "b.webp"):
        pixels = saved(tmp_path / path, Image.fromarray(colour), **({"lossless": True} if "webp" in path else {}))
        assert (pixels[:, :5] == 255).all() and (pixels[:, 5:] == colour[:, 5:, :3]).all()
    palette = Image.fromarray(gradient()).quantize(7)
    pixels = saved(tmp_path / "c.png", palette, transparency=palette.getpixel((0, 0)))
    assert (pixels[0, 0] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = gradient()
    turn: dict[int, Callable[[np.ndarray], np.ndarray]] = {
        1: lambda pixels: pixels,
        2: np.fliplr,
        3: lambda pixels: np.rot90(pixels, 2),
        4: np.flipud,
        5: lambda pixels: np.swapaxes(pixels, 0, 1),
        6: lambda pixels: np.rot90(pixels, -1),
        7: lambda pixels: np.swapaxes(np.rot90(pixels, 2), 0, 1),
        8: np.rot90,
    }
    assert (saved(tmp_path / "a.png", Image.fromarray(stored), exif=exif) == turn[orientation](stored)).all()
    with Image.open(tmp_path / "a.png") as image:  # however it is given
        assert (from_value(image) == turn[orientation](stored)).all()


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff"])
def test_the_first_frame_of_an_animation_is_read(suffix: str, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue", "green")]
    pixels = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:])
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() <= 2


def test_of_the_images_in_a_camera_s_jpeg_the_first_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue")]
    pixels = saved(tmp_path / "a.jpg", frames[0], format="MPO", save_all=True, append_images=frames[1:])
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() <= 2


def huge_png(width: int, height: int) -> bytes:
    """The header of a PNG with nearly no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 10_000), (1 << 15, 1 << 15), (MAX_PIXELS + 1, 1), (2**31 - 1, 2**31 - 1)])
def test_a_huge_image_is_refused_before_it_is_decoded(size: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(huge_png(*size))
    record = warnings.catch_warnings(record=True, action="always")
    with record as warned, pytest.raises(UserError, match=r"a\.png.*pixels"):
        read_file(tmp_path / "a.png")
    assert not warned  # Pillow's own would only repeat the error


def test_a_huge_value_is_refused() -> None:
    side = 1 << 14
    with pytest.raises(UserError, match="16384 × 16384 pixels are more than"):
        from_value(np.broadcast_to(np.uint8(3), (side, side)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.png", b""),
        ("text.jpg", b"no image\n" * 99),
        ("program.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"),  # Ghostscript must not be run
    ],
)
def test_what_is_no_image_is_an_error_that_names_the_file(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        read_file(tmp_path / name)


def test_missing_files_and_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found"):
        read_file(tmp_path / "missing.png")
    with pytest.raises(UserError, match="a folder"):
        read_file(tmp_path)
    for name in ("x" * 5000, "a\0b.png"):  # of which there cannot be a file
        assert not exists(name)
        with pytest.raises(UserError, match="not found"):
            read_image(name)


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (61, 67, 3), np.uint8))
    for suffix in ("png", "jpg", "gif", "bmp", "webp", "tiff"):
        path = tmp_path / f"a.{suffix}"
        noise.save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(UserError, match=path.name):
            read_file(path)
        if suffix != "webp":  # Pillow itself refuses to open it
            with Image.open(path) as image, pytest.raises(UserError, match="damaged"):
                from_value(image)


def test_arrays_and_pillow_images_are_values() -> None:
    colour = gradient()
    assert (from_value(colour) == colour).all()
    assert from_value(colour[..., 0]).shape == (HEIGHT, WIDTH, 1)
    assert (from_value(Image.fromarray(colour)) == colour).all()
    empty = (colour[:0], np.array(None), Image.new("L", (0, 4)))
    for wrong in (colour.astype(float), colour[..., :2], colour[None], *empty):
        with pytest.raises(UserError):
            from_value(wrong)


def test_images_of_a_folder_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "a/1.jpg", "notes.txt", "a/._1.jpg", ".ipynb_checkpoints/1.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in list_images(tmp_path)] == ["1.jpg", "2.PNG"]


# ── damaged files ────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged_files(count: int) -> list[tuple[str, bytes]]:
    """Valid files of every format with bytes changed, removed or inserted."""
    rng = np.random.default_rng(7)
    noise = Image.fromarray(rng.integers(0, 256, (23, 29, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "description"
    sources = []
    for kind, options in (
        ("jpeg", {"exif": exif}), ("jpeg", {"progressive": True}), ("png", {"exif": exif}), ("gif", {}), ("webp", {}),
        ("bmp", {}), ("tiff", {}), ("tiff", {"compression": "tiff_lzw"}), ("ppm", {}),
    ):  # fmt: skip
        buffer = io.BytesIO()
        noise.save(buffer, kind, **options)
        sources.append((kind, buffer.getvalue()))
    files = []
    for index in range(count):
        kind, content = sources[index % len(sources)]
        data = bytearray(content)
        for _ in range(int(rng.integers(1, 9))):
            limit = 64 if rng.random() < 0.5 else len(data)  # headers matter most
            position = int(rng.integers(0, min(limit, len(data))))
            action = rng.integers(0, 4)
            if action == 0:
                data[position] = int(rng.integers(0, 256))
            elif action == 1:
                del data[position : position + int(rng.integers(1, 40))]
            elif action == 2:
                data[position:position] = rng.bytes(int(rng.integers(1, 40)))
            else:
                data[position : position + 4] = b"\xff\xff\xff\xff"
            if not data:
                break
        files.append((kind, bytes(data)))
    return files


def read_damaged(count: int, tmp_path: Path) -> tuple[int, int]:
    read = refused = 0
    for kind, content in damaged_files(count):
        path = tmp_path / f"damaged.{kind}"
        path.write_bytes(content)
        message = ""
        pixels = np.zeros((1, 1, 1), np.uint8)
        try:
            pixels = read_file(path).pixels
        except UserError as error:
            message = str(error)
        assert not message or path.name in message
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] in (1, 3)
        read += not message
        refused += bool(message)
    return read, refused


def test_damaged_files_give_pixels_or_an_error(tmp_path: Path) -> None:
    read, refused = read_damaged(100, tmp_path)
    assert read and refused


@pytest.mark.slow
def test_a_thousand_damaged_files_give_pixels_or_an_error(tmp_path: Path) -> None:
    assert sum(read_damaged(1000, tmp_path)) == 1000
