"""What converts the raw inputs of a model to tensors, and its outputs back."""

from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable


@runtime_checkable
class Processor(Protocol):
    """A model's preprocessing, saved in its folder: tokenizers for text, or an image or audio processor."""

    files: ClassVar[tuple[str, ...]]  # the names of all files that `save` may write

    @property
    def source(self) -> Any:
        """What encodes inputs: a tokenizer, or an `InputProcessor`."""
        ...

    @property
    def target(self) -> Any:
        """The tokenizer of outputs; None where outputs are not text."""
        ...

    def save(self, folder: Path) -> None: ...

    def content(self) -> str:
        """All that determines the tensors, as one string: a part of the cache keys of prepared datasets."""
        ...


@runtime_checkable
class InputProcessor(Protocol):
    """Converts images or recordings to tensors."""

    files: ClassVar[tuple[str, ...]]

    @classmethod
    def load(cls, folder: Path) -> Self: ...

    def save(self, folder: Path) -> None: ...

    def content(self) -> str: ...
