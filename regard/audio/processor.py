"""The audio processor of a model ↔ preprocessor_config.json.

recording ─▶ mono samples at the model's rate ─▶ padded to a window (Whisper) ─▶ features ─▶ frames of a batch

Shapes: samples (length); features (frames, bins); batches (batch, frames, bins).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.audio.features import FeatureConfig, Kind, Normalisation, extract
from regard.audio.read import MAX_SECONDS
from regard.config.options import RecordingOptions
from regard.config.schema import show
from regard.data.small_files import read_text
from regard.errors import UserError, listed
from regard.layers.inputs import AudioBatch

FILE = "preprocessor_config.json"
COMBINED_FILE = "processor_config.json"  # of later releases of transformers, with the processor of each modality

KINDS: dict[str, Kind] = {
    "WhisperFeatureExtractor": "whisper",
    "Wav2Vec2FeatureExtractor": "waveform",
    "LogMelFeatureExtractor": "log_mel",
    "MFCCFeatureExtractor": "mfcc",
}
TYPES = {kind: name for name, kind in KINDS.items()}

WINDOW_MS, HOP_MS = 25, 10  # of new models
MFCC_FILTERS = 40  # at least

WHISPER_RATE = 16_000
WHISPER_MAX_FREQUENCY = 8000.0  # whatever the rate

UNSUPPORTED = {"dither": 0, "padding_value": 0, "padding_side": "right"}  # other values change the computation


@dataclass(frozen=True)
class AudioProcessor:
    """What a model does with a recording before its first layer."""

    features: FeatureConfig
    window_seconds: int = 0  # shorter recordings are padded with silence to this length: Whisper's 30 seconds; 0 = none
    foreign: Mapping[str, Any] = field(default_factory=dict)  # keys of a loaded file that are written back
    files: ClassVar[tuple[str, ...]] = (FILE,)

    @classmethod
    def default(cls, data: RecordingOptions, bins: int) -> Self:
        """For a new model: frames of 25 ms every 10 ms."""
        kind, rate = data.features, data.sampling_rate
        window, hop = rate * WINDOW_MS // 1000, rate * HOP_MS // 1000
        features = FeatureConfig(
            kind, rate, bins, window, hop, dynamic_range=data.dynamic_range, normalisation=data.normalisation
        )
        return cls(replace(features, bins=max(bins, MFCC_FILTERS), coefficients=bins) if kind == "mfcc" else features)

    def check_options(self, data: RecordingOptions) -> None:
        """Reject options of a new model that a pre-trained one does not have."""
        default = RecordingOptions()
        ours = {"sampling_rate": self.rate, "features": self.features.kind}
        ours |= {name: getattr(self.features, name) for name in ("dynamic_range", "normalisation")}
        for name, value in ours.items():
            requested = getattr(data, name)
            if requested not in (value, getattr(default, name)):
                raise UserError(
                    f"data.{name} = {show(requested)}, but the model's processor has {show(value)}: remove it"
                )

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The processor of a folder."""
        path = folder / FILE
        if not path.exists() and (folder / COMBINED_FILE).exists():
            path = folder / COMBINED_FILE
        try:
            config = json.loads(read_text(path))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{path}: not a readable JSON file ({error}): copy it from where the model comes from"
            ) from None
        if path.name == COMBINED_FILE and isinstance(config, dict):
            config = config.get("feature_extractor")
        try:
            if not isinstance(config, dict):
                raise UserError(f"expected a JSON object, found a {type(config).__name__}")
            return cls.from_config(config)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """From the keys of preprocessor_config.json; one that changes the computation in another way is an error."""
        name = config.get("feature_extractor_type")
        if name not in KINDS:
            raise UserError(f"feature_extractor_type = {name!r:.80} is not supported; possible: {listed(KINDS)}")
        for key, value in UNSUPPORTED.items():
            if config.get(key, value) != value:
                raise UserError(f"{key} = {config[key]!r:.80} is not supported: it must be {value!r}")
        kind = KINDS[name]
        rate = _integer(config, "sampling_rate", WHISPER_RATE)
        normalisation = _normalisation(config, kind)
        if kind == "waveform":
            if config.get("feature_size", 1) != 1:
                raise UserError(f"feature_size = {config['feature_size']!r:.80}: a waveform has 1")
            return cls(FeatureConfig("waveform", rate, normalisation=normalisation), foreign=dict(config))
        features = FeatureConfig(
            kind,
            rate,
            bins=_integer(config, "feature_size", 80),
            window=_integer(config, "n_fft", 400),
            hop=_integer(config, "hop_length", 160),
        )
        if kind == "whisper":
            features = replace(features, max_frequency=WHISPER_MAX_FREQUENCY)
            seconds = _integer(config, "chunk_length", 30)
            if not 0 < seconds <= MAX_SECONDS:
                raise UserError(f"chunk_length = {seconds}: expected 1 to {MAX_SECONDS:,} seconds")
            return cls(features, seconds, dict(config))
        scale = config.get("mel_scale", "slaney")
        if scale not in ("slaney", "htk"):
            raise UserError(f"mel_scale = {scale!r:.80}: expected 'slaney' or 'htk'")
        coefficients = _integer(config, "num_coefficients", 13)
        dynamic_range = config.get("dynamic_range", 0.0)
        if type(dynamic_range) not in (int, float):
            raise UserError(f"dynamic_range = {dynamic_range!r:.80}: expected a number of decibels")
        features = replace(features, mel_scale=scale, coefficients=coefficients)
        features = replace(features, dynamic_range=float(dynamic_range), normalisation=normalisation)
        return cls(features, foreign=dict(config))

    def to_config(self) -> dict[str, Any]:
        """The keys of preprocessor_config.json, over those of the file that was loaded."""
        features = self.features
        ours: dict[str, Any] = {"feature_extractor_type": TYPES[features.kind], "sampling_rate": features.rate}
        ours |= {"feature_size": 1 if features.kind == "waveform" else features.bins, "padding_value": 0.0}
        if features.kind != "waveform":
            ours |= {"n_fft": features.window, "hop_length": features.hop}
        if features.kind == "whisper":
            samples = self.window_seconds * features.rate
            ours |= {"chunk_length": self.window_seconds, "n_samples": samples}
            ours |= {"nb_max_frames": samples // features.hop, "return_attention_mask": False}
        else:
            ours["do_normalize"] = features.normalisation != "none"
        if features.kind in ("log_mel", "mfcc"):
            ours |= {"normalization": features.normalisation, "mel_scale": features.mel_scale}
            ours["dynamic_range"] = features.dynamic_range
        if features.kind == "mfcc":
            ours["num_coefficients"] = features.coefficients
        return ours | dict(self.foreign) | {key: value for key, value in ours.items() if key != "return_attention_mask"}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(self.to_config(), indent=2) + "\n", encoding="utf-8")

    def content(self) -> str:
        return json.dumps([asdict(self.features), self.window_seconds])

    # ── features ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def rate(self) -> int:
        """The sampling rate in Hz."""
        return self.features.rate

    @property
    def width(self) -> int:
        """The numbers of one frame."""
        return self.features.width

    @property
    def frame_seconds(self) -> float:
        """The time from one frame to the next."""
        return self.features.step / self.rate

    @property
    def window_samples(self) -> int:
        return self.window_seconds * self.rate

    def extract(self, samples: np.ndarray) -> Tensor:
        """The features of a recording at the processor's rate."""
        waveform = torch.from_numpy(samples)
        waveform = F.pad(waveform, (0, max(0, self.window_samples - len(waveform))))
        return extract(waveform, self.features)

    def collate(self, features: Sequence[Tensor]) -> AudioBatch:
        """Features of recordings as one batch."""
        lengths = torch.tensor([len(frames) for frames in features])
        return AudioBatch(pad_sequence(list(features), batch_first=True), lengths)

    def __call__(self, recordings: Sequence[np.ndarray]) -> AudioBatch:
        return self.collate([self.extract(samples) for samples in recordings])


def _normalisation(config: Mapping[str, Any], kind: Kind) -> Normalisation:
    normalise = config.get("do_normalize", kind != "whisper")
    if type(normalise) is not bool:
        raise UserError(f"do_normalize = {normalise!r:.80}: expected true or false")
    method = config.get("normalization", "bin")
    if method not in get_args(Normalisation):
        raise UserError(f"normalization = {method!r:.80}: expected {listed(get_args(Normalisation))}")
    return method if normalise and kind != "whisper" else "none"


def _integer(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key, default)
    if type(value) is not int:
        raise UserError(f"{key} = {value!r:.80}: expected an integer")
    return value
