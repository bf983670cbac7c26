"""Recordings of tones: each letter is a frequency, between short silences. What is said is known to the sample."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

RATE = 4000
LETTERS = "abcd"
TONE, GAP = 0.09, 0.05  # seconds


class Spoken(NamedTuple):
    """Letters, the samples, and the seconds at which each tone begins and ends."""

    text: str
    samples: np.ndarray
    times: list[tuple[float, float]]


def speak(text: str, seed: int = 0) -> Spoken:
    """A recording of these letters; a space is a longer silence."""
    rng = np.random.default_rng(seed)
    pieces = [np.zeros(int(0.06 * RATE))]
    times = []
    for letter in text:
        start = sum(map(len, pieces)) / RATE
        length = int(TONE * RATE * rng.uniform(0.8, 1.2))
        if letter != " ":
            phase = 2 * np.pi * (300 + 400 * LETTERS.index(letter)) * np.arange(length) / RATE
            pieces.append(0.5 * np.sin(phase))
        else:
            pieces.append(np.zeros(2 * length))
        times.append((start, sum(map(len, pieces)) / RATE))
        pieces.append(np.zeros(int(GAP * RATE)))
    samples = np.concatenate(pieces)
    return Spoken(text, (samples + rng.normal(0, 0.01, len(samples))).astype(np.float32), times)


def sentences(count: int, seed: int = 1) -> list[str]:
    """Texts of two to five letters, the longer ones with a space between two words."""
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list(LETTERS), int(rng.integers(2, 6)))) for _ in range(count)]
    return [f"{text[:2]} {text[2:]}" if len(text) >= 4 else text for text in texts]


def write_recordings(folder: Path, count: int, seed: int = 1) -> Path:
    """Files, and a table that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["audio\ttext"]
    for index, text in enumerate(sentences(count, seed)):
        soundfile.write(folder / f"{index}.wav", speak(text, index).samples, RATE)
        rows.append(f"{index}.wav\t{text}")
    table = folder / "table.tsv"
    table.write_text("\n".join(rows) + "\n")
    return table
