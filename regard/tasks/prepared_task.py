"""What tasks do alike whose data are prepared parts: the score, the longest sample, and what became of each part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from regard.config.recipe import Recipe
from regard.data.cache import Report
from regard.data.sampler import BatchOptions, batches_per_epoch, epochs
from regard.errors import UserError
from regard.layers.pytree import select_rows
from regard.models.registry import Family
from regard.tasks.distillation import Predicted, Teacher
from regard.text.vocabulary import Vocabulary


class Part(Protocol):
    """A part of the data, prepared."""

    report: Report
    hashes: dict[str, str]

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Part)


class Parted(Generic[P]):
    """A task with `corpus(part)`; it says what it is called, and by what it can be scored, its own choice first."""

    name: str
    unit = "tokens"  # what its loss is a mean over
    scores: tuple[str, ...] = ("loss",)
    teachable = False  # whether it can be learnt from a teacher, by `predict`
    training: P
    validation: P | None
    teacher: Teacher | None = None  # whom the network learns from beside the data

    @staticmethod
    def able(family: Family) -> bool:
        """Which networks can do it: encoders, where a task does not say otherwise."""
        return family.is_encoder

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary, network: Any, cache: Path) -> None:
        self.recipe, self.options, self.cache = recipe, recipe.train, cache
        self.vocabulary, self.tokenizer = vocabulary, vocabulary.target
        self.know(network)
        self.score_name = self.scores[0] if recipe.train.score == "auto" else recipe.train.score
        self.ascending = self.score_name not in ("loss", "squared_error")
        if self.score_name not in self.scores:
            possible = ", ".join(self.scores)
            raise UserError(f"train.score = '{self.score_name}' is none of task = '{self.name}'; possible: {possible}")
        self.length = self.longest(recipe.data.max_length, int(network.limit))
        self.open()

    def know(self, network: Any) -> None:
        """What a task takes from its network before it chooses a score and prepares its data."""

    def longest(self, wanted: int, limit: int) -> int:
        """The tokens of the longest sample: as many as the network reads, or fewer."""
        if wanted > limit:
            raise UserError(
                f"data.max_length = {wanted}, but the model reads at most {limit} tokens (model.limit): lower "
                "data.max_length, or raise model.limit where the model is new"
            )
        return wanted or limit

    def corpus(self, part: str) -> P | None:
        """A part of the data, prepared; nothing where the recipe names none."""
        raise NotImplementedError

    def open(self) -> None:
        """Prepare the parts that training asks for."""
        training = self.corpus("train")
        if not training:
            told = "nothing named" if training is None else training.report
            raise UserError(f"data.train has no sample to train on: {told}")
        self.training, self.validation = training, self._held_out()
        self.plan()

    def _held_out(self) -> P | None:
        """The validation part; where it is a fraction of train, an error says so."""
        share = self.recipe.data.validation
        try:
            return self.corpus("validation")
        except UserError as error:
            raise UserError(f"data.validation = {share}: {error}" if isinstance(share, float) else str(error)) from None

    def plan(self) -> None:
        """How samples become batches: those of like length together."""
        self.batching = BatchOptions(self.options.batch_tokens, self.options.batch_size, self.recipe.seed)
        self.batches_per_epoch = batches_per_epoch(self.training, self.batching)  # type: ignore[arg-type]

    def epoch(self, batches: int) -> float:
        return epochs(self.training, self.batching, batches)  # type: ignore[arg-type]

    def count(self, batch: Any) -> int:
        """How many targets the loss of a batch is a mean over."""
        raise NotImplementedError

    @property
    def whole(self) -> bool:
        """A teacher's terms are means."""
        return self.teacher is not None

    def split(self, batch: Any, pieces: int) -> list[Any]:
        """Every second sample, or third …: lengths fall within a batch."""
        pieces = min(pieces, len(batch.index))
        return [batch] if pieces == 1 else [select_rows(batch, slice(number, None, pieces)) for number in range(pieces)]

    def predict(self, network: Any, batch: Any) -> Predicted:
        """What a network says of a batch, for a task that can be learnt from a teacher."""
        raise NotImplementedError

    def taught(self, hard: Tensor, found: Predicted, batch: Any) -> Tensor:
        """The loss with what the teacher says of the batch; without a teacher as it is."""
        if self.teacher is None:
            return hard
        with torch.no_grad():
            shown = self.predict(self.teacher.network, batch)
        return self.teacher.loss(hard, found, shown, batch.text.real, self.count(batch))

    @property
    def parts(self) -> dict[str, P]:
        """What is prepared, by name."""
        return {"train": self.training} | ({} if self.validation is None else {"validation": self.validation})

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What the data was made of: name → sha256."""
        found = {f"{part}/{name}": digest for part, each in self.parts.items() for name, digest in each.hashes.items()}
        return found | (
            {f"teacher/{name}": digest for name, digest in self.teacher.hashes.items()} if self.teacher else {}
        )

    @property
    def reports(self) -> dict[str, str]:
        """What became of each part's samples, in words."""
        return {part: str(each.report) for part, each in self.parts.items()}
