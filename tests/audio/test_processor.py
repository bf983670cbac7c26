"""The audio processor of a folder: the keys of transformers' feature extractors, both directions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

from regard.audio.features import FeatureConfig
from regard.audio.processor import AudioProcessor
from regard.config.options import RecordingOptions
from regard.data.processor import InputProcessor
from regard.errors import UserError

FILE = "preprocessor_config.json"

PROCESSORS = [
    AudioProcessor.default(RecordingOptions(sampling_rate=8_000), 40),
    AudioProcessor.default(RecordingOptions(features="mfcc", dynamic_range=50.0, normalisation="recording"), 13),
    AudioProcessor(FeatureConfig("log_mel", 11_025, 31, 300, 111, "htk")),
    AudioProcessor(FeatureConfig("waveform", normalisation="bin")),
    AudioProcessor(FeatureConfig("whisper", max_frequency=8000.0), 30),
]


def noise(length: int) -> np.ndarray:
    return np.random.default_rng(length).uniform(-1, 1, length).astype(np.float32)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_saved_processor_is_the_same(processor: AudioProcessor, tmp_path: Path) -> None:
    assert isinstance(processor, InputProcessor)
    processor.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == list(processor.files)
    again = AudioProcessor.load(tmp_path)
    assert again.features == processor.features and again.content() == processor.content()
    again.save(tmp_path / "again")
    assert (tmp_path / "again" / FILE).read_text() == (tmp_path / FILE).read_text()


@pytest.mark.parametrize("theirs", [WhisperFeatureExtractor, Wav2Vec2FeatureExtractor])
def test_transformers_opens_what_is_saved(theirs: Any, tmp_path: Path) -> None:
    kind = "whisper" if theirs is WhisperFeatureExtractor else "waveform"
    processor = next(each for each in PROCESSORS if each.features.kind == kind)
    processor.save(tmp_path)
    opened = theirs.from_pretrained(tmp_path)
    samples = noise(9001)
    expected = opened(samples, sampling_rate=16_000, return_tensors="np")
    expected = (
        expected["input_features"].transpose(0, 2, 1) if kind == "whisper" else expected["input_values"][..., None]
    )
    assert np.abs(processor([samples]).frames.numpy() - expected).max() <= 1e-4


@pytest.mark.parametrize("theirs", [WhisperFeatureExtractor, Wav2Vec2FeatureExtractor])
def test_what_transformers_saves_is_kept(theirs: Any, tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    config = json.loads((tmp_path / FILE).read_text())
    config["processor_class"] = "AnyProcessor"
    (tmp_path / FILE).write_text(json.dumps(config))
    AudioProcessor.load(tmp_path).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / FILE).read_text()).items() >= config.items()


def test_the_file_of_all_modalities_is_read(tmp_path: Path) -> None:
    config = PROCESSORS[-1].to_config()
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": config, "processor_class": "a"}))
    assert AudioProcessor.load(tmp_path).features == PROCESSORS[-1].features


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"feature_extractor_type": "Unknown"}, "feature_extractor_type"),
        ({"dither": 0.1}, "dither"),
        ({"padding_value": 1.0}, "padding_value"),
        ({"padding_side": "left"}, "padding_side"),
        ({"sampling_rate": 16_000.5}, "sampling_rate"),
        ({"sampling_rate": True}, "sampling_rate"),
        ({"hop_length": 0}, "hop"),
        ({"do_normalize": "yes"}, "do_normalize"),
        ({"do_normalize": True, "normalization": "layer"}, "normalization"),
        ({"feature_extractor_type": "LogMelFeatureExtractor", "dynamic_range": "50"}, "dynamic_range"),
        ({"feature_extractor_type": "LogMelFeatureExtractor", "dynamic_range": -5}, "dynamic_range"),
        ({"feature_extractor_type": "LogMelFeatureExtractor", "feature_size": 1000}, "mel filters"),
        ({"feature_size": 1 << 40}, "bins"),
        ({"chunk_length": 1 << 40}, "chunk_length"),
    ],
)
def test_what_is_not_supported_is_an_error(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(WhisperFeatureExtractor().to_dict() | change))
    with pytest.raises(UserError, match=f"{FILE}.*{problem}"):
        AudioProcessor.load(tmp_path)


def test_a_missing_or_damaged_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=FILE):
        AudioProcessor.load(tmp_path)
    for content in ("[]", "{", '{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 2}'):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(UserError, match=FILE):
            AudioProcessor.load(tmp_path)


def test_other_recordings_of_a_batch_change_nothing() -> None:
    recordings = [noise(length) for length in (4001, 97, 12_345)]
    for processor in PROCESSORS[:4]:
        together = processor(recordings)
        for index, samples in enumerate(recordings):
            alone = processor([samples])
            length = int(alone.lengths[0])
            assert int(together.lengths[index]) == length
            assert (together.frames[index, :length] == alone.frames[0]).all()
            assert (together.frames[index, length:] == 0).all()
            assert together.real[index].sum() == length


def test_options_of_a_new_model_must_be_those_of_a_pretrained_one() -> None:
    processor = PROCESSORS[0]
    processor.check_options(RecordingOptions())
    processor.check_options(RecordingOptions(sampling_rate=8_000))
    for wrong in (RecordingOptions(sampling_rate=11_025), RecordingOptions(features="mfcc")):
        with pytest.raises(UserError, match=r"data\."):
            processor.check_options(wrong)
