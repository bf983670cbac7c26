"""Whisper's transcripts: regard beside transformers and faster-whisper, tiny.en with the published weights, greedy.

Eight recordings of 2 to 12 seconds one after the other, from samples at 16 kHz to text: features count. The unit is
seconds of sound a second. Peers that are not installed are left out, and said so: pip install "regard[bench]".
"""

import importlib
import importlib.util
import json
import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np

from benchmarks.sides import Result, Work, compare

RATE = 16_000
ROWS = [  # name, our precision, the peer's package and its precision
    ("float32, beside transformers", "float32", "transformers", "float32"),
    ("float32, beside faster-whisper float32", "float32", "faster_whisper", "float32"),
    ("int8, beside transformers float32", "int8", "transformers", "float32"),
    ("int8, beside faster-whisper int8", "int8", "faster_whisper", "int8"),
]


def measure(rounds: int, threads: int) -> list[Result]:
    folder = Path(os.environ.get("REGARD_WEIGHTS", "nowhere")) / "whisper-tiny-en"
    archive = Path(os.environ.get("REGARD_DATA", "nowhere")) / "asterisk-prompts-en" / "flac8k.zip"
    if not folder.is_dir() or not archive.is_file():
        print("left out: speech (set REGARD_WEIGHTS and REGARD_DATA)", file=sys.stderr)
        return []
    recordings = read(folder, archive)
    seconds = sum(map(len, recordings)) / RATE
    results = []
    with TemporaryDirectory() as converted:
        for name, precision, package, other in ROWS:
            if importlib.util.find_spec(package) is None:
                print(f"left out: {name} ({package} is not installed)", file=sys.stderr)
                continue
            peer = theirs if package == "transformers" else faster
            sides = {
                "regard": (ours, str(folder), precision, recordings, threads),
                "peer": (peer, str(folder), converted, other, recordings, threads),
            }
            results.append(compare(name, "s of sound/s", seconds, sides, rounds, agreement))
    return results


def read(folder: Path, archive: Path) -> list[np.ndarray]:
    """The recordings with expected transcripts, in memory."""
    from regard.audio.read import read_audio

    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    with ZipFile(archive) as files, TemporaryDirectory() as directory:
        members = {Path(name).name: name for name in files.namelist()}
        return [read_audio(Path(files.extract(members[each["file"]], directory)), RATE) for each in expected]


def ours(folder: str, precision: str, recordings: list[np.ndarray], threads: int) -> Work:
    import torch

    import regard

    torch.set_num_threads(threads)
    model = regard.load(folder, device="cpu", precision=precision)
    return lambda: [model.run((samples, RATE)).text for samples in recordings]


def theirs(folder: str, converted: str, precision: str, recordings: list[np.ndarray], threads: int) -> Work:
    import torch

    torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        import transformers as hf

        model: Any = hf.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        extract: Any = hf.WhisperFeatureExtractor.from_pretrained(folder)
        tokenizer: Any = hf.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    prompt = torch.tensor(
        [[model.generation_config.decoder_start_token_id, model.generation_config.no_timestamps_token_id]]
    )
    end = model.generation_config.eos_token_id

    def transcribe(samples: np.ndarray) -> str:
        features = extract(samples, sampling_rate=RATE, return_tensors="pt").input_features
        ids = model.generate(features, decoder_input_ids=prompt, num_beams=1, do_sample=False)[0].tolist()
        return tokenizer.decode([token for token in ids if token < end]).strip()

    def work() -> list[str]:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [transcribe(samples) for samples in recordings]

    return work


def faster(folder: str, converted: str, precision: str, recordings: list[np.ndarray], threads: int) -> Work:
    """CTranslate2's form of the weights, without its own voice detection, fallbacks and timestamps."""
    package: Any = importlib.import_module("faster_whisper")
    converters: Any = importlib.import_module("ctranslate2.converters")
    path = Path(converted) / precision
    if not path.exists():
        files = ["tokenizer.json", "preprocessor_config.json"]
        converters.TransformersConverter(folder, copy_files=files).convert(str(path), quantization=precision)
    model = package.WhisperModel(str(path), device="cpu", compute_type=precision, cpu_threads=threads)
    options = dict(language="en", beam_size=1, temperature=0.0, without_timestamps=True, vad_filter=False)

    def transcribe(samples: np.ndarray) -> str:
        segments, _ = model.transcribe(samples, condition_on_previous_text=False, **options)
        return "".join(segment.text for segment in segments).strip()

    return lambda: [transcribe(samples) for samples in recordings]


def agreement(ours: list[str], others: list[str]) -> str:
    same = sum(one == other for one, other in zip(ours, others, strict=True))
    return f"{same} of {len(ours)} transcripts are equal"
