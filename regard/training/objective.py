"""What the training loop asks for: something to minimise and to score, and batches. A `Task` is both."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn


class BatchSource(Protocol):
    """Numbered batches: from a dataset, or made by the network that is trained (on-policy).

    Batch k may depend on k, the seed and the weights at the moment it is taken, and on nothing else: then the number of
    the next batch is all that a resume has to know.
    """

    batches_per_epoch: int  # 0 = without epochs

    def batches(self, start: int, rank: int, world: int) -> Iterator[Any]:
        """The endless batches of one process, from its `start`-th: its k-th is batch k · world + rank of all.

        Each has an `index`, a tensor that identifies its samples. A batch is taken just before the step that needs it.
        """
        ...

    def epoch(self, batches: int) -> float:
        """The number of epochs in that many batches."""
        ...


class Objective(Protocol):
    """A loss over batches, and a score of the network; `Task` describes each member."""

    score_name: str  # the metric that decides which checkpoint is best
    ascending: bool  # whether larger is better
    unit: str  # what `num_targets` counts

    @property
    def fingerprint(self) -> Mapping[str, str]: ...

    @property
    def indivisible(self) -> bool: ...

    def num_targets(self, batch: Any) -> int: ...

    def loss(self, network: nn.Module, batch: Any) -> Tensor: ...

    def split(self, batch: Any, pieces: int) -> list[Any]: ...

    def validate(self, network: nn.Module) -> dict[str, float]: ...

    def preview(self, network: nn.Module, count: int) -> Sequence[tuple[str, str, str]]: ...


class TrainingTask(Objective, BatchSource, Protocol):
    """A task as the loop sees it."""
