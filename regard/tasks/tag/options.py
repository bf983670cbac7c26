"""Recipe tables of token classification."""

from dataclasses import dataclass

from regard.config.options import (
    DataOptions,
    Schedule,
    TaskOptions,
    TokenizerKind,
    TokenizerOptions,
    TrainOptions,
    require,
)


@dataclass(frozen=True)
class TagData(DataOptions):
    """Sentences whose words have tags: CoNLL files, or JSON lines with two lists."""

    text: str = ""  # the columns of the words,
    label: str = ""  # and of their tags

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.split_by == "source",
            f"data.split_by = '{self.split_by}' is not supported by task = 'tag': sentences are split one by one",
        )


@dataclass(frozen=True)
class TagTrain(TrainOptions):
    schedule: Schedule = "linear"
    warmup_steps: int = 100
    betas: tuple[float, float] = (0.9, 0.999)
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class TagTokenizer(TokenizerOptions):
    kind: TokenizerKind = "wordpiece"


OPTIONS = TaskOptions(TagData, TagTrain, TagTokenizer)
