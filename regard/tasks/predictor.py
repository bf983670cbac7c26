"""The inference side of the task contract: predictions, traces, and the rows of a file as inputs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from regard.attention.trace import Trace
from regard.config.recipe import Recipe
from regard.data.processor import Processor
from regard.errors import UserError, either, nearest
from regard.interop.sentence_transformers import Pooling
from regard.progress import Progress
from regard.tasks.batching import EncodedText
from regard.tasks.registry import TASKS, options_of, task_of

Options = dict[str, Any]  # of `run`, by name


class Inference(NamedTuple):
    """How predictions are computed: options of `run` for every task."""

    batch_size: int = 64
    truncate: bool = False
    progress: Progress = lambda done: None


DEFAULT_INFERENCE = Inference()


class Prediction(Protocol):
    """What every prediction has; a task adds fields of its own, which `--json` prints."""

    @property
    def text(self) -> str: ...

    @property
    def truncated(self) -> bool: ...

    @property
    def alternatives(self) -> "tuple[Prediction, ...]": ...


class Unranked:
    """A prediction without alternatives."""

    @property
    def alternatives(self) -> tuple["Prediction", ...]:
        return ()


@dataclass(frozen=True)
class EmptyPrediction:
    """The prediction for an empty input among several. It is false, and the fields of other predictions are None."""

    text: str = ""
    truncated: bool = False
    alternatives: tuple["EmptyPrediction", ...] = ()

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


EMPTY = EmptyPrediction()


class RunInput(NamedTuple):
    """An input as a predictor takes it, and where it was read."""

    value: Any
    location: str = ""
    row: Mapping[str, Any] = MappingProxyType({})  # all columns of the row that it was read from

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else " ".join(self.value)
        return f"{self.location}: {text[:60]!r}…" if self.location else f"{text[:60]!r}…"


class Segment(NamedTuple):
    """A piece of a prediction for a terminal; `style` is "", "strong", "highlight" or "dim"."""

    text: str
    style: str = ""


class LoadedModel(Protocol):
    """What predictors and evaluations need of `regard.load`'s model."""

    network: Any
    processor: Processor
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

    def predictor(self, task: str = "") -> Any: ...

    def run(self, inputs: Any, *, task: str = "", **options: Any) -> Any: ...


class Predictor(ABC):
    """How a loaded model does one task."""

    task: ClassVar[str]
    description: ClassVar[str]  # of a model of this task, as in "a classifier"
    options: ClassVar[tuple[str, ...]] = ()  # of `run`, besides those of Inference
    text_columns: tuple[str, ...] = ("text",)  # of a file of inputs; the first that the file has
    streams: ClassVar[bool] = False  # whether `stream` is defined
    batch_size: ClassVar[int] = 64  # default of `run`
    sorts_by_length: ClassVar[bool] = True  # whether many inputs are sorted before they are batched

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.network = model.network
        self.processor: Any = model.processor
        self.tokenizer = model.processor.target

    @classmethod
    def accepts(cls, model: LoadedModel) -> bool:
        """Whether the model can do this task."""
        return model.task == cls.task

    @property
    def data(self) -> Any:
        """The model's data options; the defaults of the task if it has no recipe."""
        recipe = self.model.recipe
        return recipe.data if recipe and recipe.task == self.task else options_of(self.task).data()

    # ── predictions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def is_single(self, inputs: Any) -> bool:
        """Whether this is one input and not a list of them."""
        return isinstance(inputs, str | Mapping)

    def is_empty(self, value: Any) -> bool:
        """Whether an input has no text to predict from."""
        parts = value if isinstance(value, list | tuple) else [value]
        return all(isinstance(part, str) and not part.strip() for part in parts)

    def run(self, inputs: Any, options: Options) -> Any:
        """A prediction for one input, or for each of several; an empty one of several has an empty prediction.

        A single empty input is passed on to `predict`: an error where there is nothing to compute.
        """
        computing: Options = {"batch_size": self.batch_size}
        computing |= {name: options.pop(name) for name in Inference._fields if name in options}
        positive(computing, "batch_size", 1)
        inference = Inference(**computing)
        self.check_options(options)
        if self.is_single(inputs):
            return self.predict([inputs], options, inference)[0]
        inputs = list(inputs)
        indices = [index for index, value in enumerate(inputs) if not self.is_empty(value)]
        predictions: list[Prediction] = [EMPTY] * len(inputs)
        try:
            computed = self.predict([inputs[index] for index in indices], options, inference)
        except UserError as error:
            raise error if error.index is None else UserError(error.message, indices[error.index]) from None
        for index, prediction in zip(indices, computed, strict=True):
            predictions[index] = prediction
        inference.progress(len(inputs) - len(indices))
        return predictions

    @abstractmethod
    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> Sequence[Prediction]:
        """A prediction for each input."""

    @abstractmethod
    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        """The attention while `target`, or the model's own prediction, is computed."""

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        """Texts as the network takes them, for embeddings."""
        raise UserError(f"{self.description} cannot embed texts")

    def generate(self, rows: list[list[int]], options: Options) -> list[list[int]]:
        """New token ids for rows of token ids."""
        raise UserError(f"generate() is not available for task = '{self.task}': use run()")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Reject an option that the task does not have; the error says which tasks have it."""
        for name in options:
            if name not in self.options:
                owners = tasks_with_option(name)
                known = (*self.options, *Inference._fields)
                hint = f"; it is for task {either(owners)}" if owners else nearest(name, known)
                possible = f"; expected one of: {', '.join(known)}" if owners else ""
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

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput] | None:
        """The inputs that the arguments of a command name, such as files; None where they are the inputs themselves."""
        return None

    def read_special(self, path: Path, paired: bool) -> Iterator[RunInput] | None:
        """The inputs of a file in the task's own format; None for tables and lines of text."""
        return None

    def column_types(self, column: str) -> dict[str, tuple[type, ...]]:
        """JSON types of a column besides text."""
        return {}

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        """A row of a table as an input."""
        return RunInput(text if second is None else (text, second), location)

    def lines(self, prediction: Any, options: Mapping[str, Any]) -> list[str]:
        """A prediction as lines of plain text: the best one, then its alternatives."""
        return [" ".join(each.text.splitlines()) for each in (prediction, *prediction.alternatives)]

    def segments(self, prediction: Any, value: Any, options: Mapping[str, Any]) -> list[Segment] | None:
        """The prediction for an input, with emphasis for a terminal; None where plain lines are all there is."""
        return None

    def notes(self, value: RunInput, prediction: Prediction) -> Iterator[str]:
        """Warnings about a prediction."""
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
