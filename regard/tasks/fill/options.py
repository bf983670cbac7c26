"""Recipe tables of masked language modelling."""

from dataclasses import dataclass
from typing import Literal

from regard.config.options import DocumentOptions, FineTuneOptions, TaskOptions, WordPieceOptions, require


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
            f"data.mask_probability = {self.mask_probability}: must be between 0 and 1",
        )


@dataclass(frozen=True)
class FillTrain(FineTuneOptions):
    warmup_steps: int = 500


OPTIONS = TaskOptions(FillData, FillTrain, WordPieceOptions)
