"""The task contract: everything that one task is, from its data options to its `doctor` checks.

    options.py   Data, Train, Tokenizer: the recipe tables of the task, importable without torch
    task.py      a Task: supported families, processor, head, datasets, batches, loss, validation, doctor checks;
                 a SampleTask if its batches are samples of similar length
    predict.py   a Predictor: predictions, traces, rows of a file
    evaluate.py  metrics of one model, or of two compared

The training loop, `regard.load`, the command line and `doctor` use this contract only.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from regard.config.recipe import Recipe
from regard.data.cache import Report
from regard.data.prefetch import prefetched
from regard.data.processor import Processor
from regard.data.sampler import BatchOptions, Measured, batches_per_epoch, epoch_shares, epochs
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import Network
from regard.layers.pytree import select_rows
from regard.models.registry import FAMILIES, Family
from regard.runtime.machine import choose_device
from regard.tasks.distillation import Predicted, Teacher
from regard.tasks.inspection import Findings
from regard.tasks.predictor import LoadedModel, Predictor
from regard.tasks.scoring import Evaluation, EvaluationRequest, baseline_warning
from regard.text.special_tokens import with_end_token, with_mask_token
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

SPLITS = ("train", "validation", "test")


class Split(Protocol):
    """A prepared split of the data."""

    report: Report
    hashes: dict[str, str]

    def __len__(self) -> int: ...


class Samples(Split, Measured, Protocol):
    """A split of samples with known lengths."""


S = TypeVar("S", bound=Split)
M = TypeVar("M", bound=Samples)


class Preview(NamedTuple):
    """One validation sample as shown during training."""

    source: str
    reference: str
    prediction: str


class Task(ABC, Generic[S]):
    """A task. An instance holds the prepared data of one recipe and is what the training loop works on.

    Batches are numbered 0, 1, 2, …; batch k is a pure function of the seed and k.
    """

    name: ClassVar[str]
    predictor: ClassVar[type[Predictor]]
    unit: str = "tokens"  # what `num_targets` counts
    trainable: ClassVar[bool] = True
    supports_distillation: ClassVar[bool] = False  # then `predict_batch` is defined
    scores: tuple[str, ...] = ("loss",)  # metrics of `validate`; the first one selects the best checkpoint
    constant: str = "always predicting the same"  # the prediction of `baseline`, for people
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss", "mse", "wer", "per"})
    batches_per_epoch: int
    data: Any  # the task's own options
    processor: Any  # a `Processor`; of text tasks a `Vocabulary`
    training: S
    validation: S | None
    teacher: Teacher | None = None

    # ── what a model must have ───────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def supports(family: Family) -> bool:
        """Whether models of this family can be trained on the task; by default encoders of text."""
        return family.is_encoder and family.input_type is TokenBatch

    @staticmethod
    @abstractmethod
    def create_processor(recipe: Recipe) -> Processor:
        """The processor of a new model: for text a tokenizer, trained on the training split."""

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """The model with the head that the task needs; a fitting head is kept."""
        return loaded

    # ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def __init__(self, recipe: Recipe, processor: Processor, network: Network, cache: Path) -> None:
        self.recipe = recipe
        self.options: Any = recipe.train
        self.data = recipe.data
        self.cache = cache
        self.processor = processor
        self.tokenizer = processor.target
        self.bind(network)
        self.score_name = self.scores[0] if recipe.train.score == "auto" else recipe.train.score
        if self.score_name not in self.scores:
            raise UserError(
                f"train.score = '{self.score_name}' is not a metric of task = '{self.name}'; expected one of: "
                f"{', '.join(self.scores)}"
            )
        self.ascending = self.score_name not in self.lower_is_better
        self.length = self.max_tokens(self.data.max_length, network.max_positions)
        self.prepare()

    def bind(self, network: Any) -> None:
        """Take what the task needs of its network, before the metric is chosen and the data prepared."""

    def max_tokens(self, requested: int, limit: int) -> int:
        """Maximum number of tokens of a sample."""
        if requested > limit:
            raise UserError(
                f"data.max_length = {requested}, but the model reads at most {limit} tokens (model.max_positions): "
                "lower data.max_length, or raise model.max_positions of a new model"
            )
        return requested or limit

    @abstractmethod
    def dataset(self, split: str) -> S | None:
        """A prepared split; None where the recipe names none."""

    def prepare(self) -> None:
        """Prepare the splits that training needs."""
        training = self.dataset("train")
        if not training:
            reason = "nothing named" if training is None else training.report
            raise UserError(f"data.train has no sample to train on: {reason}")
        self.training = training
        share = self.data.validation
        try:
            self.validation = self.dataset("validation")
        except UserError as error:
            if not isinstance(share, float):
                raise
            raise UserError(
                f"data.validation = {share}: {error}; a small file may have too few samples to hold some out: raise "
                "data.validation, or name a file"
            ) from None
        self.plan_batches()

    @abstractmethod
    def plan_batches(self) -> None:
        """Decide what `batches` needs, and set `batches_per_epoch`; the splits are prepared."""

    @property
    def splits(self) -> dict[str, S]:
        return {"train": self.training} | ({} if self.validation is None else {"validation": self.validation})

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """sha256 of every file that the training depends on, by name."""
        hashes = {
            f"{name}/{file}": digest for name, split in self.splits.items() for file, digest in split.hashes.items()
        }
        teacher = self.teacher.hashes if self.teacher else {}
        return hashes | {f"teacher/{file}": digest for file, digest in teacher.items()}

    @property
    def reports(self) -> dict[str, str]:
        """How many samples of each split were kept and skipped, in words."""
        return {name: str(split.report) for name, split in self.splits.items()}

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def batches(self, start: int, rank: int, world: int) -> Iterator[Any]:
        """An endless stream of this process's batches from its `start`-th: its k-th is batch k · world + rank."""

    @abstractmethod
    def epoch(self, batches: int) -> float:
        """How many epochs that many batches are."""

    @abstractmethod
    def num_targets(self, batch: Any) -> int:
        """How many targets the loss of a batch is a mean over."""

    @abstractmethod
    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        """The sum, not the mean, of the loss over those targets, so that losses of partial batches add up."""

    @property
    def indivisible(self) -> bool:
        """Whether a batch must not be split: distillation terms are means over the batch."""
        return self.teacher is not None

    def split(self, batch: Any, pieces: int) -> list[Any]:
        """At most `pieces` batches whose losses sum to that of the batch: every second sample, or third, …"""
        pieces = min(pieces, len(batch.indices))
        return [batch] if pieces == 1 else [select_rows(batch, slice(start, None, pieces)) for start in range(pieces)]

    def predict_batch(self, network: Any, batch: Any) -> Predicted:
        """Hidden states and logits of a batch, for distillation."""
        raise UserError(f"task = '{self.name}' does not support distillation: remove distil.teacher")

    def with_distillation(self, loss: Tensor, predicted: Predicted, batch: Any) -> Tensor:
        """The loss with the teacher's terms; without a teacher as it is."""
        if self.teacher is None:
            return loss
        with torch.no_grad():
            expected = self.predict_batch(self.teacher.network, batch)
        return self.teacher.loss(loss, predicted, expected, self.num_targets(batch))

    @abstractmethod
    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and metrics on the validation split; empty where there is none."""

    def baseline(self) -> dict[str, float]:
        """The metrics of `validate` for a constant prediction; empty where the task has none."""
        return {}

    def score_warning(self, score: float) -> str:
        """A warning if the best validation score is not better than the baseline; otherwise empty."""
        baseline = self.baseline().get(self.score_name)
        if baseline is None:
            return ""
        return baseline_warning(f"validation {self.score_name}", score, baseline, self.constant, self.ascending)

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        """A few validation samples with their predictions."""
        return []

    # ── evaluation and checks ────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    @abstractmethod
    def evaluate(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
        """Metrics of one model on a file or on a split of its recipe; of two models also their comparison."""

    def inspect(self, splits: Mapping[str, S], findings: Findings) -> None:
        """`doctor` checks of the task's data."""


class SampleTask(Task[M]):
    """A task whose batches are samples of similar length."""

    def plan_batches(self) -> None:
        self.batching = BatchOptions(self.options.batch_tokens, self.options.batch_size, self.recipe.seed)
        self.batches_per_epoch = batches_per_epoch(self.training, self.batching)

    @abstractmethod
    def collate(self, split: M, indices: Sequence[int]) -> Any:
        """These samples of a split as one batch."""

    def batches(self, start: int, rank: int, world: int) -> Iterator[Any]:
        """On a GPU they are prepared by a background thread; a CPU would not be faster."""
        shares = epoch_shares(self.training, self.batching, start, rank, world)
        batches = (self.training_batch(indices, epoch) for epoch, indices in shares)
        return batches if choose_device(self.options.device).type == "cpu" else prefetched(batches)

    def training_batch(self, indices: Sequence[int], epoch: int) -> Any:
        """These training samples as one batch, where the task has augmentation as it is in this epoch."""
        return self.collate(self.training, indices)

    def epoch(self, batches: int) -> float:
        return epochs(self.training, self.batching, batches)


def train_shared_tokenizer(texts: Iterable[str], recipe: Recipe) -> Vocabulary:
    """One tokenizer for inputs and outputs, with a mask token for encoders and an end token for other models."""
    family = FAMILIES.get(recipe.model.get("family", ""))
    add_special_tokens = with_mask_token if family and family.is_encoder else with_end_token
    tokenizer = add_special_tokens(train_tokenizer(texts, recipe.tokenizer, append_eos=False))
    return Vocabulary(tokenizer, tokenizer)


def reject_classifier(loaded: Loaded, recipe: Recipe) -> Loaded:
    """The model as it is; a classifier cannot be trained on another task."""
    if loaded.network.task == "classify":
        named = f"model.from = '{recipe.model['from']}'" if "from" in recipe.model else "the model"
        raise UserError(f"{named} is a classifier: it cannot do task = '{recipe.task}'")
    return loaded
