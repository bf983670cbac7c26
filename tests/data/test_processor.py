"""A processor is all that a model's folder needs to know of its preprocessing."""

from pathlib import Path
from typing import ClassVar

from regard.config.recipe import TokenizerOptions
from regard.data.processor import InputProcessor, Processor
from regard.interop.processors import FeatureProcessor
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary


class Pixels:
    """An image processor, as small as it can be."""

    files: ClassVar[tuple[str, ...]] = ("preprocessor_config.json",)

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def load(cls, folder: Path) -> "Pixels":
        return cls(int((folder / cls.files[0]).read_text()))

    def save(self, folder: Path) -> None:
        (folder / self.files[0]).write_text(str(self.size))

    def content(self) -> str:
        return f"pixels {self.size}"


def test_processors_come_back_from_their_folder(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["a dog", "ein Hund"], TokenizerOptions(kind="characters"))
    other = train_tokenizer(["a cat"], TokenizerOptions(kind="characters"))
    pixels = Pixels(224)
    assert isinstance(pixels, InputProcessor)
    processors: list[Processor] = [
        Vocabulary(tokenizer, tokenizer),
        Vocabulary(tokenizer, other),
        FeatureProcessor(pixels),
        FeatureProcessor(pixels, tokenizer),
    ]
    for index, processor in enumerate(processors):
        folder = tmp_path / str(index)
        folder.mkdir()
        assert isinstance(processor, Processor)
        processor.save(folder)
        written = [file.name for file in folder.iterdir()]
        assert written and {*written} <= {*processor.files}
        target = None if processor.target is None else Vocabulary.load(folder).target
        again = FeatureProcessor(Pixels.load(folder), target) if index > 1 else Vocabulary.load(folder)
        assert again.content() == processor.content()
    assert len({processor.content() for processor in processors}) == len(processors)
