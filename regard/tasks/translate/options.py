"""Recipe tables of translation."""

from dataclasses import dataclass

from regard.config.options import DataOptions, TaskOptions


@dataclass(frozen=True)
class TranslateData(DataOptions):
    """Parallel text: two files, or two columns of a table."""

    source: str = ""  # names of sides or columns
    target: str = ""
    prefix: str = ""  # the column whose value becomes a first token "<value>"
    max_length: int = 256


OPTIONS = TaskOptions(TranslateData)
