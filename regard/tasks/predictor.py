"""The inference side of the task contract: predictions, traces, and the rows of a file as inputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from regard.attention.trace import Trace
from regard.config.recipe import Recipe
from regard.errors import UserError, nearest
from regard.interop.sentence_transformers import Pooling
from regard.tasks.encoding import EncodedText
from regard.tasks.registry import TASKS, options_of, task_of
from regard.text.vocabulary import Vocabulary

COMPUTING = ("batch_size", "truncate", "progress")  # options of how predictions are computed, for every task

Progress = Callable[[int], None]


class Prediction(Protocol):
    """What every prediction has; a task adds fields of its own, which `--json` prints."""

    @property
    def text(self) -> str: ...

    @property
    def truncated(self) -> bool: ...

    @property
    def alternatives(self) -> "tuple[Prediction, ...]": ...


@dataclass(frozen=True)
class EmptyPrediction:
    """The prediction for an empty line, or for a row without text."""

    text: str = ""
    truncated: bool = False
    alternatives: tuple["EmptyPrediction", ...] = ()


class RunInput(NamedTuple):
    """An input as a predictor takes it, and where it was read."""

    value: Any
    location: str = ""
    blank: bool = False  # there is nothing to predict from, and the prediction is empty

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else " ".join(self.value)
        return f"{self.location}: {text[:60]!r}…" if self.location else f"{text[:60]!r}…"


class Segment(NamedTuple):
    """A piece of a prediction for a terminal; `style` is "", "strong", "highlight" or "dim"."""

    text: str
    style: str = ""


class LoadedModel(Protocol):
    """What a predictor needs of `regard.load`'s model."""

    network: Any
    vocabulary: Vocabulary
    generation: dict[str, Any]
    config: dict[str, Any]
    recipe: Recipe | None
    folder: Path | None
    precision: str
    pooling: Pooling | None

    @property
    def task(self) -> str: ...

    @property
    def device(self) -> torch.device: ...


class Predictor(ABC):
    """How a loaded model does one task."""

    task: ClassVar[str]
    description: ClassVar[str]  # of a model of this task, as in "a classifier"
    options: ClassVar[tuple[str, ...]] = ()  # of `run`, besides COMPUTING
    text_columns: ClassVar[tuple[str, ...]] = ("text",)  # of a file of inputs; the first that the file has
    batch_size: ClassVar[int] = 64  # by default
    streams: ClassVar[bool] = False  # whether `stream` is defined
    batch_size: ClassVar[int] = 64  # default of `run`
    sorts_by_length: ClassVar[bool] = True  # whether many inputs are sorted before they are batched

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.network = model.network
        self.vocabulary = model.vocabulary
        self.tokenizer = model.vocabulary.target

    @classmethod
    def accepts(cls, model: LoadedModel) -> bool:
        """Whether the model can do this task."""
        return model.task == cls.task

    @property
    def data(self) -> Any:
        """The model's data options; the task's defaults where it came without a recipe."""
        recipe = self.model.recipe
        return recipe.data if recipe and recipe.task == self.task else options_of(self.task).data()

    # ── predictions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def is_single(self, inputs: Any) -> bool:
        """Whether this is one input and not a list of them."""
        return isinstance(inputs, str | Mapping)

    @abstractmethod
    def predict(
        self, inputs: list[Any], options: dict[str, Any], *, batch_size: int, truncate: bool, progress: Progress
    ) -> Sequence[Prediction]:
        """A prediction for each input."""

    @abstractmethod
    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
        """The attention while `target`, or the model's own prediction, is computed."""

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        """Texts as the network takes them, for embeddings."""
        raise UserError(f"{self.description} has no embeddings of texts")

    def generate(self, rows: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
        """New token ids for rows of token ids."""
        raise UserError(f"this model cannot generate: its task is '{self.task}'")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Reject an option that the task does not have; the error says which tasks have it."""
        for name in options:
            if name not in self.options:
                owners = tasks_with_option(name)
                known = (*self.options, *COMPUTING)
                hint = f"; it is for task {' or '.join(owners)}" if owners else nearest(name, known)
                possible = f"; possible: {', '.join(known)}" if owners else ""
                raise UserError(f"'{name}' is not an option of {self.description}{hint}{possible}")

    # ── files and terminals ──────────────────────────────────────────────────────────────────────────────────────────

    def second_column(self, requested: str, has_context: bool) -> str:
        """The column of a second text; empty where the model takes one text."""
        if requested:
            raise UserError(f"--text-pair {requested}: {self.description} takes one text at a time")
        return ""

    def extra_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Further columns, of those that a file has, that `parse_row` reads."""
        return ()

    def takes_first_column(self) -> bool:
        """Whether the first column is the input where none has a usual name."""
        return False

    def read_special(self, path: Path, paired: bool) -> Iterator[RunInput] | None:
        """The inputs of a file in the task's own format; None for tables and lines of text."""
        return None

    def column_types(self, column: str) -> dict[str, tuple[type, ...]]:
        """JSON types of a column besides text."""
        return {}

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        """A row of a table as an input."""
        if second is not None:
            return RunInput((text, second), location, not (text + second).strip())
        return RunInput(text, location, not text.strip())

    def lines(self, prediction: Any, options: Mapping[str, Any]) -> list[str]:
        """A prediction as lines of plain text: the best one, then its alternatives."""
        return [" ".join(each.text.splitlines()) for each in (prediction, *prediction.alternatives)]

    def segments(self, prediction: Any) -> list[Segment] | None:
        """A prediction with emphasis for a terminal; None where plain lines are all there is."""
        return None

    def notes(self, value: RunInput, prediction: Prediction) -> Iterator[str]:
        """What a reader should know of how the prediction came about."""
        if prediction.truncated:
            yield f"truncated to what the model reads: {value}"

    def describe(self) -> dict[str, Any]:
        """Facts for `regard inspect`."""
        return {}


def tasks_with_option(name: str) -> list[str]:
    """The tasks whose `run` has this option."""
    return [task for task in TASKS if name in task_of(task).predictor.options]


def positive(options: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number of at least 1."""
    value = options.get(name, default)
    if type(value) is not int or value < 1:
        raise UserError(f"{name} = {value!r} should be a whole number of at least 1")
    return value
