"""Recipe tables of masked language modelling."""

from dataclasses import dataclass
from typing import Literal

from regard.config.options import (
    DocumentOptions,
    Schedule,
    TaskOptions,
    TokenizerKind,
    TokenizerOptions,
    TrainOptions,
    require,
)


@dataclass(frozen=True)
class FillData(DocumentOptions):
    """Plain text whose tokens are masked; with a pair task also two segments per row."""

    pair_task: Literal["none", "nsp", "sop"] = "none"  # next sentence prediction, or sentence order prediction
    mask_probability: float = 0.15
    whole_word_mask: bool = False  # all tokens of a word are masked together

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 < self.mask_probability < 1,
            f"data.mask_probability = {self.mask_probability}: must lie between 0 and 1",
        )


@dataclass(frozen=True)
class FillTrain(TrainOptions):
    schedule: Schedule = "linear"
    warmup_steps: int = 500
    betas: tuple[float, float] = (0.9, 0.999)
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class FillTokenizer(TokenizerOptions):
    kind: TokenizerKind = "wordpiece"


OPTIONS = TaskOptions(FillData, FillTrain, FillTokenizer)
