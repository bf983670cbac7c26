"""What converts the raw inputs of a model to tensors and back."""

from pathlib import Path
from typing import ClassVar, Protocol, Self, runtime_checkable


@runtime_checkable
class Processor(Protocol):
    """A model's preprocessing, saved in its folder: tokenizers for text; an image or audio processor fits as well.

    How inputs are encoded depends on the modality, and is the business of the tasks that use it.
    """

    files: ClassVar[tuple[str, ...]]  # the names of all files that `save` may write

    @classmethod
    def load(cls, folder: Path) -> Self: ...

    def save(self, folder: Path) -> None: ...

    def content(self) -> str:
        """All that determines the tensors, as one string: a part of the cache keys of prepared datasets."""
        ...
