"""Recipe tables of token classification."""

from dataclasses import dataclass

from regard.config.options import DataOptions, FineTuneOptions, TaskOptions, WordPieceOptions, require


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


OPTIONS = TaskOptions(TagData, FineTuneOptions, WordPieceOptions)
