"""Audio files and arrays → mono samples at one rate. What cannot be read is a `UserError` that names the file.

file ─▶ header: limits ─▶ blocks of frames ─▶ mean of the channels ─▶ resampler ─▶ samples

Files are decoded in blocks, so memory holds the result and one block, whatever a header announces.

Shapes: frames (length, channels); samples (length) of type float32, from −1 to 1.
"""

import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from regard.errors import UserError

MAX_SECONDS = 2 * 3600  # of one recording, from its header
MAX_CHANNELS = 32
MIN_RATE, MAX_RATE = 1_000, 384_000  # Hz
MAX_AMPLITUDE = 1 << 16  # of float files, whose samples should be from −1 to 1

BLOCK = 1 << 16  # frames

RESAMPLING = "MQ"  # soxr's medium quality: a precision of 16 bits

FORMATS = "WAV, FLAC, OGG (Vorbis, Opus) or MP3"
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3")

HEADER_BYTES = 28  # at the beginning of a file: its format, and of WAV its size
SIGNATURES = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
MPEG_SYNC = 0xFFE0  # the first 11 bits of a frame of MP3

UNKNOWN_FRAMES = (1 << 63) - 1  # of FLAC written to a pipe, as libsndfile tells it
UNKNOWN_SIZE = 0x7FFF0000  # programs that write WAV to a pipe announce a size from here on
MAX_OGG_PAGE, OGG_HEADER, OGG_LAST = 65_307, 27, 4  # bytes of a page and of its header; the flag of the last page
MIN_READ = 0.75  # of the bytes of an MP3, which may end with tags
SIZE_TOLERANCE = 64  # bytes by which careless programs announce too much

INTEGER_SCALES = {np.dtype(np.int16): 1 << 15, np.dtype(np.int32): 1 << 31}


def soundfile() -> Any:
    """The library that decodes; it comes with an extra."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: libsndfile is missing
        raise UserError("audio files need soundfile: pip install 'regard[speech]'") from None
    return soundfile


def soxr() -> Any:
    """The library that resamples; it comes with the same extra."""
    try:
        import soxr
    except ImportError:
        raise UserError("resampling audio needs soxr: pip install 'regard[speech]'") from None
    return soxr


def is_audio_file(path: Path) -> bool:
    """Whether the name of a file is that of a recording."""
    return path.suffix.lower() in SUFFIXES


def list_recordings(folder: Path) -> list[Path]:
    """All recordings of a folder and of the folders in it, in order."""
    return sorted(path for path in folder.rglob("*") if is_audio_file(path) and path.is_file())


def read_audio(file: str | Path | BinaryIO, rate: int, name: str = "") -> np.ndarray:
    """The samples of a file at this rate; errors name it `name`, by default its path."""
    buffer = bytearray()  # grows in place: a list of blocks would need twice the memory
    for block in read_blocks(file, rate, name):
        buffer += block.data
    return np.frombuffer(buffer, np.float32)


def read_blocks(file: str | Path | BinaryIO, rate: int, name: str = "") -> Iterator[np.ndarray]:
    """The same in blocks of some seconds, for recordings of any length up to the limit."""
    name = name or str(file)
    with _opened(file, name) as opened:
        yield from _resampled(opened, rate, name)


class Header(NamedTuple):
    """What a file says about itself."""

    rate: int
    channels: int
    seconds: float | None  # None where it is known at the end only


def read_header(file: str | Path | BinaryIO, name: str = "") -> Header:
    """The header of a file, without decoding it."""
    name = name or str(file)
    with _opened(file, name) as opened, _named_errors(name):
        _check_container(opened)
        with soundfile().SoundFile(opened) as decoder:
            _check_header(decoder)
            seconds = decoder.frames / decoder.samplerate if decoder.frames < UNKNOWN_FRAMES else None
            return Header(decoder.samplerate, decoder.channels, seconds)


def from_value(value: Any, rate: int) -> np.ndarray:
    """The samples of an array (length) or (length, channels) at this rate, of float or signed integer type.

    Of another rate: a pair of the array and its rate, or a mapping with `array` and `sampling_rate`.
    """
    if isinstance(value, Mapping):
        value = value.get("array"), value.get("sampling_rate", rate)
    array, own_rate = value if isinstance(value, tuple) and len(value) == 2 else (value, rate)
    frames = np.asarray(array)
    if type(own_rate) is not int or not MIN_RATE <= own_rate <= MAX_RATE:
        raise UserError(f"a sampling rate of {own_rate!r}: expected {MIN_RATE:,} to {MAX_RATE:,} Hz")
    is_known_type = frames.dtype.kind == "f" or frames.dtype in INTEGER_SCALES
    if not is_known_type or frames.ndim not in (1, 2) or (frames.ndim == 2 and frames.shape[1] > MAX_CHANNELS):
        raise UserError(
            f"an array of type {frames.dtype} and shape {frames.shape}: expected float32, float64, int16 or int32 "
            f"(length) or (length, channels) with at most {MAX_CHANNELS} channels"
        )
    if not frames.size:
        raise UserError(f"an array of shape {frames.shape} has no samples")
    if len(frames) > MAX_SECONDS * own_rate:
        raise UserError(f"{len(frames) / own_rate:,.0f} seconds are over the limit of {MAX_SECONDS:,}: split the array")
    scale = INTEGER_SCALES.get(frames.dtype, 1)
    samples = _to_mono(frames.reshape(len(frames), -1).astype(np.float32) / scale)
    return samples if own_rate == rate else soxr().resample(samples, own_rate, rate, RESAMPLING)


def _opened(file: str | Path | BinaryIO, name: str) -> AbstractContextManager[BinaryIO]:
    """The bytes of a path, or those of an open file, which stays open."""
    if not isinstance(file, str | Path):
        return nullcontext(file)
    path = Path(file)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise UserError(f"{name}: expected an audio file, this is {'a folder' if path.is_dir() else 'a device'}")
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{name}: recording not found ({error.strerror})") from None


def _resampled(file: BinaryIO, rate: int, name: str) -> Iterator[np.ndarray]:
    with _named_errors(name):
        size = _check_container(file)
        with soundfile().SoundFile(file) as decoder:
            decoder.seekable = lambda: False  # or soundfile seeks after each block, which some files do not allow
            _check_header(decoder)
            blocks = (_to_mono(frames) for frames in _decoded(decoder, file, size))
            if decoder.samplerate == rate:
                yield from blocks
                return
            resampler = soxr().ResampleStream(decoder.samplerate, rate, 1, dtype="float32", quality=RESAMPLING)
            for block in blocks:
                yield resampler.resample_chunk(block)
            yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """What goes wrong in a decoder as an error that names the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except (RuntimeError, OSError, ValueError, TypeError) as error:  # soundfile's own error is a RuntimeError
        problem = getattr(error, "error_string", error)
        raise UserError(f"{name}: the recording is damaged ({problem})") from None


def _check_container(file: BinaryIO) -> int:
    """The bytes of a file. Only formats that are listed reach a decoder, and no file that ends too early."""
    start = file.read(HEADER_BYTES)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if not start:
        raise UserError("the file is empty")
    is_mpeg = int.from_bytes(start[:2], "big") & MPEG_SYNC == MPEG_SYNC
    if not start.startswith(SIGNATURES) and not is_mpeg:
        raise UserError(f"not a recording; expected {FORMATS}")
    announced = 0
    if start.startswith(b"RIFF"):
        announced = int.from_bytes(start[4:8], "little")
        announced *= announced < UNKNOWN_SIZE
    elif start.startswith(b"RF64"):
        announced = int.from_bytes(start[20:28], "little", signed=True)
    if announced > size + SIZE_TOLERANCE:
        raise UserError(f"the recording is truncated: {size:,} of {announced:,} bytes")
    if start.startswith(b"OggS") and not _has_last_page(file, size):
        raise UserError("the recording is truncated: its last page is missing")
    return size


def _has_last_page(file: BinaryIO, size: int) -> bool:
    """Whether an Ogg file ends with the complete page that is marked as its last. RFC 3533, section 6."""
    file.seek(max(0, size - MAX_OGG_PAGE))
    tail = file.read()
    file.seek(0)
    page = tail[tail.rfind(b"OggS") :]
    if len(page) < OGG_HEADER:
        return False
    segments = page[OGG_HEADER : OGG_HEADER + page[OGG_HEADER - 1]]
    return bool(page[5] & OGG_LAST) and len(page) >= OGG_HEADER + len(segments) + sum(segments)


def _check_header(decoder: Any) -> None:
    rate, channels = decoder.samplerate, decoder.channels
    if not MIN_RATE <= rate <= MAX_RATE:
        raise UserError(f"a sampling rate of {rate:,} Hz: expected {MIN_RATE:,} to {MAX_RATE:,}")
    if channels > MAX_CHANNELS:
        raise UserError(f"{channels} channels are over the limit of {MAX_CHANNELS}")
    if MAX_SECONDS * rate < decoder.frames < UNKNOWN_FRAMES:
        seconds = math.ceil(decoder.frames / rate)
        raise UserError(f"{seconds:,} seconds are over the limit of {MAX_SECONDS:,}: split the recording")


def _decoded(decoder: Any, file: BinaryIO, size: int) -> Iterator[np.ndarray]:
    """The frames of a file in blocks; fewer than its header announces are an error."""
    count = 0
    while len(frames := decoder.read(BLOCK, dtype="float32", always_2d=True)):
        count += len(frames)
        if count > MAX_SECONDS * decoder.samplerate:
            raise UserError(f"is longer than the limit of {MAX_SECONDS:,} seconds: split the recording")
        yield frames
    if not count:
        raise UserError("has no samples")
    if count < decoder.frames < UNKNOWN_FRAMES:
        raise UserError(f"the recording is truncated: {count:,} of {decoder.frames:,} frames")
    if decoder.format == "MP3" and file.tell() < size * MIN_READ:  # of variable bit rate without a header
        raise UserError("its length cannot be known before it is decoded: convert it to FLAC or WAV")


def _to_mono(frames: np.ndarray) -> np.ndarray:
    """The mean of the channels."""
    peak = float(np.abs(frames).max())
    if not peak <= MAX_AMPLITUDE:  # also if it is NaN
        raise UserError(f"has samples of {peak}: expected numbers from -1 to 1")
    return np.ascontiguousarray(frames[:, 0]) if frames.shape[1] == 1 else frames.mean(1)
