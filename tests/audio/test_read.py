"""Every kind of recording gives the right samples, or an error that names the file; damaged files never crash."""

import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from regard.audio.read import (
    MAX_AMPLITUDE,
    MAX_CHANNELS,
    MAX_SECONDS,
    from_value,
    list_recordings,
    read_audio,
    read_blocks,
    read_header,
)
from regard.audio.sources import read_recording
from regard.errors import UserError

RATE = 8_000


def tone(seconds: float = 0.5, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def written(path: Path, samples: np.ndarray, rate: int = RATE, **options: Any) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("suffix", "subtype", "error"),
    [
        ("wav", "PCM_U8", 2**-7), ("wav", "PCM_16", 2**-15), ("wav", "PCM_24", 2**-23), ("wav", "PCM_32", 1e-7),
        ("wav", "FLOAT", 1e-7), ("wav", "DOUBLE", 1e-7), ("flac", "PCM_S8", 2**-7), ("flac", "PCM_16", 2**-15),
        ("flac", "PCM_24", 2**-23),
    ],
)  # fmt: skip
def test_lossless_formats_keep_the_samples(suffix: str, subtype: str, error: float, tmp_path: Path) -> None:
    samples = read_audio(written(tmp_path / f"a.{suffix}", tone(), subtype=subtype), RATE)
    assert samples.dtype == np.float32 and samples.shape == tone().shape
    assert np.abs(samples - tone()).max() <= error


@pytest.mark.parametrize(("suffix", "subtype"), [("ogg", "VORBIS"), ("opus", "OPUS"), ("mp3", "MPEG_LAYER_III")])
def test_lossy_formats_keep_the_tone(suffix: str, subtype: str, tmp_path: Path) -> None:
    name = {"opus": "OGG"}.get(suffix, suffix.upper())
    samples = read_audio(written(tmp_path / f"a.{suffix}", tone(1.0), format=name, subtype=subtype), RATE)
    assert len(samples) == RATE
    assert np.abs(np.fft.rfft(samples)).argmax() == 440


def test_channels_are_averaged(tmp_path: Path) -> None:
    channels = np.stack([tone() * gain for gain in (1.0, 0.5, -0.5, 0.0, 0.25, 0.1)], 1)
    for suffix in ("wav", "flac"):
        path = written(tmp_path / f"a.{suffix}", channels, subtype="PCM_24")
        assert read_header(path).channels == 6
        assert np.abs(read_audio(path, RATE) - channels.mean(1)).max() <= 2**-23


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100, 96_000])
def test_a_recording_is_resampled(rate: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", tone(1.0, rate), rate, subtype="FLOAT")
    for target in (8_000, 16_000):
        samples = read_audio(path, target)
        assert abs(len(samples) - target) <= 1
        middle = slice(target // 10, -target // 10)  # the edges ring
        assert np.abs(samples[: target - 1] - tone(1.0, target)[: target - 1])[middle].max() < 1e-3


def test_blocks_are_the_whole_recording(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, 150_001)
    path = written(tmp_path / "a.wav", noise, 24_000, subtype="FLOAT")
    for rate in (24_000, 16_000):
        blocks = list(read_blocks(path, rate))
        assert len(blocks) >= 3
        assert np.array_equal(np.concatenate(blocks), read_audio(path, rate))
    assert np.abs(read_audio(path, 24_000) - noise).max() < 1e-7


def test_open_files_and_archives_give_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "a.flac", tone())
    expected = read_audio(path, 16_000)
    assert np.array_equal(read_audio(io.BytesIO(path.read_bytes()), 16_000, "a.flac"), expected)
    with zipfile.ZipFile(tmp_path / "speech.zip", "w") as archive:
        archive.write(path, "clips/a.flac")
        archive.writestr("clips/b.flac", b"fLaC broken")
    assert np.array_equal(read_recording(f"{tmp_path}/speech.zip/clips/a.flac", 16_000), expected)
    with pytest.raises(UserError, match=r"speech.zip/clips/b\.flac"):
        read_recording(f"{tmp_path}/speech.zip/clips/b.flac", 16_000)


def test_a_streamed_file_of_unknown_length_is_read(tmp_path: Path) -> None:
    content = bytearray(written(tmp_path / "a.flac", tone()).read_bytes())
    samples_field = int.from_bytes(content[18:26], "big") >> 36 << 36  # the lower 36 bits are the length: RFC 9639
    content[18:26] = samples_field.to_bytes(8, "big")
    (tmp_path / "b.flac").write_bytes(content)
    content = bytearray(written(tmp_path / "a.wav", tone()).read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    (tmp_path / "b.wav").write_bytes(content)
    for name in ("b.flac", "b.wav"):
        assert np.abs(read_audio(tmp_path / name, RATE) - tone()).max() <= 2**-15
    assert read_header(tmp_path / "b.flac").seconds is None


def test_arrays_are_values() -> None:
    expected = tone().astype(np.float32)
    for array in (tone(), expected, np.round(tone() * 32768).astype(np.int16), np.stack([tone()] * 2, 1)):
        assert np.abs(from_value(array, RATE) - expected).max() <= 2**-15
    for value in ((tone(0.5, 16_000), 16_000), {"array": tone(0.5, 16_000), "sampling_rate": 16_000}):
        assert np.abs(from_value(value, RATE) - expected)[400:-400].max() < 1e-3
    for wrong in (np.zeros(0), np.zeros((5, 5, 5)), np.zeros(5, np.uint8), np.array(None), (tone(), 7), {"array": "a"}):
        with pytest.raises(UserError):
            from_value(wrong, RATE)
    for array in (np.full(9, np.nan), np.full(9, 1e30)):
        with pytest.raises(UserError, match="samples of"):
            from_value(array, RATE)


def test_recordings_of_a_folder_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b/2.WAV", "a/1.flac", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in list_recordings(tmp_path)] == ["1.flac", "2.WAV"]


# ── errors and limits ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"no recording\n" * 99, "not a recording"),
        (b"FORM\0\0\0\0AIFF" + bytes(99), "not a recording"),
        (b"RIFF\xff\xff\xff\xffWAVE", "damaged"),
        (b"RIFF\x10\x00\x00\x00AVI LIST" + bytes(99), "damaged"),
        (b"\xff\xfb" + bytes(99), ""),
    ],
)
def test_what_is_no_recording_is_an_error_that_names_the_file(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(content)
    with pytest.raises(UserError, match=rf"bad\.wav.*{problem}"):
        read_audio(tmp_path / "bad.wav", RATE)


def test_missing_files_and_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.wav.*not found"):
        read_audio(tmp_path / "missing.wav", RATE)
    with pytest.raises(UserError, match="a folder"):
        read_audio(tmp_path, RATE)


def test_a_recording_without_samples_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.wav.*no samples"):
        read_audio(written(tmp_path / "a.wav", np.zeros(0)), RATE)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "VORBIS", "OPUS", "MPEG_LAYER_III", "flac"])
def test_a_truncated_recording_is_an_error(subtype: str, tmp_path: Path) -> None:
    kinds = {"VORBIS": "OGG", "OPUS": "OGG", "MPEG_LAYER_III": "MP3", "flac": "FLAC"}
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 3 * RATE)
    path = tmp_path / "cut.wav"
    written(path, noise, format=kinds.get(subtype, "WAV"), subtype="PCM_16" if subtype == "flac" else subtype)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"cut\.wav"):
        read_audio(path, RATE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0 * MAX_AMPLITUDE])
def test_samples_that_are_no_numbers_are_an_error(value: float, tmp_path: Path) -> None:
    samples = tone()
    samples[77] = value
    with pytest.raises(UserError, match=r"a\.wav.*samples of"):
        read_audio(written(tmp_path / "a.wav", samples, subtype="FLOAT"), 16_000)


def riff(rate: int, channels: int, announced: int) -> bytes:
    """The header of a WAV with 16 bits."""
    form = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate * channels, 2 * channels, 16)
    return struct.pack("<4sI4s4sI", b"RIFF", announced + 36, b"WAVE", b"fmt ", 16) + form + b"data"


def rf64(announced: int) -> bytes:
    """A WAV of more than 4 GB, and nearly none of its samples."""
    sizes = struct.pack("<4sIQQQI", b"ds64", 28, announced + 80, announced, announced // 2, 0)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return struct.pack("<4sI4s", b"RF64", 0xFFFFFFFF, b"WAVE") + sizes + form + b"data\xff\xff\xff\xff" + bytes(2000)


def announcing_flac(frames: int, path: Path) -> bytes:
    """A FLAC whose header announces more frames than it has."""
    content = bytearray(written(path, tone()).read_bytes())
    fields = int.from_bytes(content[18:26], "big") >> 36 << 36 | frames
    content[18:26] = fields.to_bytes(8, "big")
    return bytes(content)


def test_a_header_that_announces_too_much_is_an_error(tmp_path: Path) -> None:
    files = {
        "rf64.wav": rf64(10_000_000_000),
        "riff.wav": riff(RATE, 1, 1_000_000_000) + struct.pack("<I", 1_000_000_000) + bytes(2000),
        "long.flac": announcing_flac((MAX_SECONDS + 1) * RATE, tmp_path / "a.flac"),
        "short.flac": announcing_flac(10 * RATE, tmp_path / "a.flac"),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}.*(truncated|over the limit)"):
            read_audio(tmp_path / name, RATE)


def test_rates_and_channels_are_limited(tmp_path: Path) -> None:
    for rate, channels in ((500, 1), (400_000, 1), (RATE, MAX_CHANNELS + 1)):
        content = riff(rate, channels, 2 * channels * 99) + struct.pack("<I", 2 * channels * 99) + bytes(198 * channels)
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.wav.*(rate|channels)"):
            read_audio(tmp_path / "a.wav", RATE)


MEASURE = """
import resource, sys
from regard.audio.read import read_audio
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
read_audio(sys.argv[1], 16000)
before = peak()
samples = read_audio(sys.argv[2], 16000)
print(len(samples), peak() - before)
"""


def test_an_hour_of_silence_needs_the_memory_of_its_samples(tmp_path: Path) -> None:
    short = written(tmp_path / "short.flac", np.zeros((96_000, 6)), 96_000)
    path = tmp_path / "hour.flac"
    with soundfile.SoundFile(path, "w", 48_000, 2) as file:
        for _ in range(60):
            file.write(np.zeros((48_000 * 60, 2), np.int16))
    arguments = [sys.executable, "-c", MEASURE, str(short), str(path)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    samples, memory = map(int, run.stdout.split())
    assert samples == 3600 * 16_000
    assert memory < 1.5 * 4 * samples  # decoded at once, the frames would be 6 times the samples


# ── damaged files ────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged_files(count: int) -> list[tuple[str, bytes]]:
    """Valid files of every format with bytes changed, removed or inserted."""
    rng = np.random.default_rng(11)
    noise = rng.uniform(-0.5, 0.5, (2 * RATE, 2))
    sources = []
    for kind, subtype in (
        ("WAV", "PCM_U8"), ("WAV", "PCM_16"), ("WAVEX", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"),
        ("RF64", "PCM_16"), ("WAV", "ULAW"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
    ):  # fmt: skip
        buffer = io.BytesIO()
        soundfile.write(buffer, noise, RATE, format=kind, subtype=subtype)
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
        files.append((kind.lower(), bytes(data)))
    return files


def read_damaged(count: int, tmp_path: Path) -> tuple[int, int]:
    read = refused = 0
    for kind, content in damaged_files(count):
        path = tmp_path / f"damaged.{kind}"
        path.write_bytes(content)
        message = ""
        samples = np.zeros(1, np.float32)
        try:
            samples = read_audio(path, 16_000)
        except UserError as error:
            message = str(error)
        assert not message or path.name in message
        assert samples.dtype == np.float32 and samples.ndim == 1 and np.isfinite(samples).all()
        read += not message
        refused += bool(message)
    return read, refused


def test_damaged_files_give_samples_or_an_error(tmp_path: Path) -> None:
    read, refused = read_damaged(99, tmp_path)
    assert read and refused


@pytest.mark.slow
def test_a_thousand_damaged_files_give_samples_or_an_error(tmp_path: Path) -> None:
    assert sum(read_damaged(1000, tmp_path)) == 1000
