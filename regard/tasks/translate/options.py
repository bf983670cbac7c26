"""Recipe tables of translation."""

from dataclasses import dataclass

from regard.config.options import DataOptions, TaskOptions, require


@dataclass(frozen=True)
class TranslateData(DataOptions):
    """Parallel text: two files, or two columns of a table."""

    source: str = ""  # names of sides or columns
    target: str = ""
    prefix: str = ""  # the column whose value becomes a first token "<value>"
    pronunciations: bool = False  # words and their phonemes, as in CMUdict: WORD(2) is another pronunciation of WORD
    stress: bool = False  # whether vowels of pronunciations keep their stress: AH0, not AH
    max_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.pronunciations or not self.stress,
            "data.stress = true is about the phonemes of a pronouncing dictionary: set data.pronunciations = true",
        )


OPTIONS = TaskOptions(TranslateData)
