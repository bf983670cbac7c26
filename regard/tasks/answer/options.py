"""Recipe tables of extractive question answering."""

from dataclasses import dataclass

from regard.config.options import DataOptions, FineTuneOptions, TaskOptions, WordPieceOptions, require


@dataclass(frozen=True)
class AnswerData(DataOptions):
    """Questions about passages: SQuAD files, or tables."""

    question: str = ""  # columns of the questions,
    context: str = ""  # of the passages,
    answer: str = ""  # and of the answers
    stride: int = 0  # tokens from one window of a long passage to the next; 0 = a third of the window

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.stride >= 0, f"data.stride = {self.stride}: must be 0 or more")


OPTIONS = TaskOptions(AnswerData, FineTuneOptions, WordPieceOptions)
