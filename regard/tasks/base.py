"""What the training loop needs of a task, and nothing else: batches, a loss and a score."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """A task hands the loop batches numbered 0, 1, 2, …; batch k is a pure function of the seed and k."""

    score_name: str  # the metric that says which checkpoint is best
    ascending: bool  # whether larger is better
    unit: str  # what `count` counts
    batches_per_epoch: int

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What the data was made of: name → sha256."""
        ...

    @property
    def reports(self) -> Mapping[str, str]:
        """What became of each part's samples, in words."""
        ...

    def batches(self, start: int, rank: int, world: int) -> Iterator[Any]:
        """A process's own batches without end, from its `start`-th: its k-th is batch k · world + rank of all."""
        ...

    def epoch(self, batches: int) -> float:
        """How many times that many batches go through the data."""
        ...

    def count(self, batch: Any) -> int:
        """How many targets the loss of a batch is a mean over."""
        ...

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        """The sum, not the mean, of the loss over those targets: so that sums of batches are the sum of the whole."""
        ...

    @property
    def whole(self) -> bool:
        """Whether a batch must not be split: its loss is more than the sum of its samples'."""
        ...

    def split(self, batch: Any, pieces: int) -> list[Any]:
        """The samples of a batch in at most so many batches whose losses sum to the whole's."""
        ...

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and scores on the validation part; empty where there is none."""
        ...

    def samples(self, network: nn.Module, count: int) -> list[tuple[str, str, str]]:
        """A few (source, reference, answer) to look at."""
        ...
