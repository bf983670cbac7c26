"""Recipe tables of speech recognition."""

from dataclasses import dataclass, field
from typing import Literal

from regard.config.options import (
    AudioAugmentOptions,
    RecordingOptions,
    TaskOptions,
    TokenizerKind,
    TokenizerOptions,
    TrainOptions,
    require,
)

Units = Literal["text", "phonemes"]


@dataclass(frozen=True)
class TranscribeData(RecordingOptions):
    """Recordings with their transcripts: a table, or a folder with a text file beside each recording."""

    text: str = ""  # column of the transcript (by default "text")
    words: dict[str, str] = field(default_factory=dict)  # what values of this column stand for, such as 7 = "seven"
    units: Units = "text"  # "phonemes": separated by spaces; tokens are words, and the metric is PER
    ignore: tuple[str, ...] = ()  # units that are left out, such as "SIL"
    max_seconds: float = 30.0  # longer recordings are skipped and counted
    max_length: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.max_seconds > 0, f"data.max_seconds = {self.max_seconds}: must be above 0")


@dataclass(frozen=True)
class TranscribeTrain(TrainOptions):
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class TranscribeTokenizer(TokenizerOptions):
    kind: TokenizerKind = "characters"
    min_frequency: int = 1


OPTIONS = TaskOptions(TranscribeData, TranscribeTrain, TranscribeTokenizer, AudioAugmentOptions)
