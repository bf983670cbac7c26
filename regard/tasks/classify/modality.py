"""What classification needs of a modality: how its samples are read, prepared, encoded and batched.

files ─▶ records ─▶ prepare ─▶ dataset ─▶ collate ─▶ batch ─▶ network      training
values ─▶ encode ─▶ rows ─▶ batch ─▶ network                              prediction
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.attention.recording import Recorder
from regard.attention.trace import Trace
from regard.config.options import AudioAugmentOptions, ImageAugmentOptions
from regard.config.recipe import Recipe
from regard.config.schema import show
from regard.data.files import Record
from regard.data.processor import Processor
from regard.data.targets import Targets
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.layers.inputs import AudioBatch, Batch, ImageBatch, TokenBatch
from regard.layers.pytree import to_device
from regard.models.heads.sequence import Classifier
from regard.tasks.base import Samples
from regard.tasks.classify.options import ClassifyData
from regard.tasks.inspection import Findings
from regard.tasks.predictor import RunInput

IMBALANCE = 20  # times as many samples of the most frequent label as of the rarest

IMAGE_AUGMENTATION = tuple(f"augment.{option.name}" for option in fields(ImageAugmentOptions))

AUDIO_OPTIONS = (
    *(
        "data.audio",
        "data.recordings",
        "data.file_name",
        "data.features",
        "data.sampling_rate",
        "data.dynamic_range",
        "data.normalisation",
    ),
    *(f"augment.{option.name}" for option in fields(AudioAugmentOptions)),
)


class LabelledSamples(Samples, Protocol):
    """A prepared split of any modality."""

    target_values: Any

    def target(self, index: int) -> Any: ...

    def text(self, index: int) -> Any: ...


class LabelledBatch(NamedTuple):
    """Inputs and the indices of their labels."""

    inputs: Any  # a `Batch`
    labels: Tensor  # (batch), of multi-label inputs (batch, labels)
    indices: Tensor  # (batch): the samples' indices in the dataset

    def to(self, device: torch.device | str) -> "LabelledBatch":
        return to_device(self, device)


class Row(Protocol):
    """One input as the network takes it."""

    @property
    def truncated(self) -> bool: ...


class Modality(ABC):
    """One modality. Its static methods read files before there is a network."""

    unit: ClassVar[str]  # what its samples are called
    other_options: ClassVar[tuple[str, ...]] = ()  # keys of a recipe that are for other modalities
    columns: ClassVar[tuple[str, ...]]  # of a file of inputs; the first that the file has

    def __init__(self, recipe: Recipe | None, data: ClassifyData, processor: Processor, network: Any):
        """`recipe` is that of the training, if it is known."""
        self.recipe = recipe
        self.data = data
        self.processor: Any = processor
        self.network = network

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    @abstractmethod
    def locate(data: ClassifyData, split: str, base_dir: Path | None) -> Path:
        """The file, pattern or folder that contains a split."""

    @staticmethod
    @abstractmethod
    def files(path: Path) -> Mapping[str, Path]:
        """The files that such a path names, by name."""

    @staticmethod
    @abstractmethod
    def records(data: ClassifyData, split: str, base_dir: Path | None) -> Iterator[Record]:
        """Every sample of the file that contains a split: its input is the source, its label the target."""

    # ── a new model ──────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    @abstractmethod
    def create_processor(cls, recipe: Recipe) -> Processor:
        """The processor of a new model."""

    @classmethod
    @abstractmethod
    def attach_head(cls, loaded: Loaded, recipe: Recipe) -> Loaded:
        """A backbone with a new head for the labels of the training split; a classifier keeps its head."""

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def prepare(self, split: str, targets: Targets, cache: Path, max_length: int) -> Any:
        """A split as `LabelledSamples`, from the cache if the same was prepared before."""

    @abstractmethod
    def collate(self, dataset: Any, indices: Sequence[int], epoch: int | None = None) -> Batch:
        """These samples as one batch; with an `epoch` as training samples, which may be augmented."""

    def repeat(self, indices: Sequence[int]) -> Sequence[int]:
        """The training samples of a batch; repeated augmentation replaces some by others."""
        return indices

    def mix_targets(self, targets: Tensor, indices: Sequence[int], epoch: int) -> Tensor:
        """The targets of training samples, mixed as `collate` mixes their inputs."""
        return targets

    def check_options(self) -> None:
        """Reject options of other modalities."""
        for key in self.other_options if self.recipe else ():
            section, _, name = key.partition(".")
            options = getattr(self.recipe, section)
            value = getattr(options, name)
            if value != getattr(type(options)(), name):
                raise UserError(f"{key} = {show(value)} is not an option for {self.unit}: remove it")

    @abstractmethod
    def inspect(self, splits: Mapping[str, Any], findings: Findings) -> None:
        """`doctor` checks of the inputs."""

    def warn_imbalance(self, train: Any, findings: Findings) -> None:
        """A warning where some labels are much rarer than others."""
        if self.network.problem_type != "single_label":
            return
        counts = np.bincount(np.asarray(train.target_values, int), minlength=len(self.network.labels))
        if counts.max() > IMBALANCE * max(1, counts.min()):
            most, least = (self.network.labels[index] for index in (counts.argmax(), counts.argmin()))
            findings.warnings.append(
                f"train: {counts.max()} {self.unit} of '{most}', but {counts.min()} of '{least}': consider "
                "train.class_weights = 'balanced', and train.score = 'macro_f1'"
            )

    # ── prediction ───────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def value(self, source: str) -> Any:
        """The input of a record, as `run` takes it."""

    def is_readable(self, source: str) -> bool:
        """Whether the input of a record can be used."""
        return bool(source.strip())

    def is_single(self, inputs: Any) -> bool:
        """Whether this is one input and not a list of them."""
        return isinstance(inputs, str | Mapping)

    def is_empty(self, value: Any) -> bool:
        """Whether an input has nothing to predict from."""
        return isinstance(value, str) and not value.strip()

    @abstractmethod
    def encode(self, values: Sequence[Any], truncate: bool = False) -> list[Any]:
        """Inputs as `Row`s; one that the network cannot take is an error."""

    @abstractmethod
    def lengths(self, rows: Sequence[Any]) -> list[int]:
        """The positions of each row: rows of similar length are batched together."""

    @abstractmethod
    def batch(self, rows: Sequence[Any]) -> Batch:
        """Rows as one batch."""

    @abstractmethod
    def trace(self, recorder: Recorder, row: Any, answer: str) -> Trace:
        """The recorded attention over a row, with its axes."""

    def second_column(self, requested: str) -> str | None:
        """The column of a second input; "" for none, None where `requested` is not possible."""
        return None if requested else ""

    def parse_row(self, text: str, second: str | None, location: str) -> RunInput:
        """A row of a table as an input."""
        return RunInput(text if second is None else (text, second), location)

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput] | None:
        """The inputs that arguments of a command name; None where they are the inputs themselves."""
        return None

    def show(self, value: Any) -> str:
        """An input for people."""
        return str(value)


MODALITIES: dict[type[Batch], str] = {  # imported when used: their libraries are optional
    TokenBatch: "regard.tasks.classify.texts:Texts",
    ImageBatch: "regard.tasks.classify.images:Images",
    AudioBatch: "regard.tasks.classify.recordings:Recordings",
}


def modality_of(input_type: type[Batch]) -> type[Modality]:
    """The modality of networks with this input."""
    module, _, name = MODALITIES[input_type].partition(":")
    return getattr(import_module(module), name)


def modality_for(model: Any) -> Modality:
    """The modality of a loaded classifier, with the options that it was trained with."""
    recipe = model.recipe if model.recipe and model.recipe.task == "classify" else None
    data = ClassifyData.of(recipe) if recipe else ClassifyData()
    network: Classifier = model.network
    return modality_of(network.input_type)(recipe, data, model.processor, network)
