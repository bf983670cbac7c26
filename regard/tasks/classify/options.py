"""Recipe tables of classification and regression."""

from dataclasses import dataclass
from typing import Literal

from regard.config.options import (
    AudioAugmentOptions,
    FineTuneOptions,
    ImageAugmentOptions,
    RecordingOptions,
    Schedule,
    TaskOptions,
    TokenizerKind,
    TokenizerOptions,
    require,
)


@dataclass(frozen=True)
class ClassifyData(RecordingOptions):
    """Labelled text, images or recordings: one or two text columns, or one of files, and a label."""

    text: str = ""  # columns of the text,
    text_pair: str = ""  # of the second text of a pair,
    label: str = ""  # and of the label
    image: str = ""  # column of the image files
    label_prefix_until: str = ""  # a label ends before this delimiter: "NUM" of "NUM:date"
    problem_type: Literal["single_label", "multi_label", "regression"] = "single_label"
    label_separator: str = ","  # between the labels of a multi-label text
    stratify: bool = True  # whether a split held out of train has the label distribution of train (single-label)
    truncate: bool = False  # whether a text longer than max_length is truncated instead of skipped
    segment_length: int = 0  # tokens of the segments into which a long document is split; 0 = no segments
    stride: int = 0  # tokens from one segment to the next; 0 = 3/4 of segment_length

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("stride", "segment_length"):
            require(getattr(self, name) >= 0, f"data.{name} = {getattr(self, name)}: must be 0 or more")
        if self.segment_length:
            inside = self.segment_length - 2
            require(
                inside > 0,
                f"data.segment_length = {self.segment_length}: must be more than the two special tokens of a segment",
            )
            require(
                self.stride <= inside,
                f"data.stride = {self.stride}: a segment of {self.segment_length} tokens has {inside} of the text, and "
                "none may be passed over",
            )
            require(
                not self.text_pair,
                f"data.segment_length = {self.segment_length}: a document is one text: remove data.text_pair = "
                f"'{self.text_pair}'",
            )
        require(bool(self.label_separator), "data.label_separator is empty: give the delimiter, such as |")
        require(
            self.split_by != "containing_text" or not self.text_pair,
            "data.split_by = 'containing_text' is for single texts: with data.text_pair name a column, or leave it out",
        )

    @property
    def segment_stride(self) -> int:
        """Tokens from one segment to the next; by default they overlap by a quarter."""
        return self.stride or max(1, min(3 * self.segment_length // 4, self.segment_length - 2))


@dataclass(frozen=True)
class ClassifyTrain(FineTuneOptions):
    schedule: Schedule = "cosine"
    warmup_steps: int = 50
    class_weights: Literal["none", "balanced"] = "none"  # "balanced": rare labels count as much as frequent ones
    lm_loss_weight: float = 0.0  # of the language modelling loss on the text, for causal models

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lm_loss_weight >= 0, f"train.lm_loss_weight = {self.lm_loss_weight}: must be 0 or more")


@dataclass(frozen=True)
class ClassifyTokenizer(TokenizerOptions):
    kind: TokenizerKind = "byte_bpe"


@dataclass(frozen=True)
class ClassifyAugment(ImageAugmentOptions, AudioAugmentOptions):
    """Of images, or of recordings."""


OPTIONS = TaskOptions(ClassifyData, ClassifyTrain, ClassifyTokenizer, ClassifyAugment)
