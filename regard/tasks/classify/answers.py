"""Answers of a network that tells labels: one of them, those that hold, or a number."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from regard.models.heads.sequence import Classifier

LIKELY = 0.5  # from here on a label of several holds


@dataclass(frozen=True)
class Label:
    """What a text is called. `score` is its probability among all `scores`, a softmax that nothing has calibrated."""

    label: str
    score: float
    scores: dict[str, float] = field(default_factory=dict)
    truncated: bool = False  # the text lost its end

    def __str__(self) -> str:
        return f"{self.label} ({self.score:.2f}, uncalibrated)"

    @property
    def text(self) -> str:
        return self.label

    @property
    def others(self) -> tuple["Label", ...]:
        return ()


@dataclass(frozen=True)
class Several:
    """All that a text is called, likeliest first: the labels that are each at least half likely, or as asked."""

    labels: tuple[str, ...]
    scores: dict[str, float] = field(default_factory=dict)
    truncated: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{label} ({self.scores[label]:.2f})" for label in self.labels) or "none"

    @property
    def text(self) -> str:
        return ", ".join(self.labels)

    @property
    def score(self) -> float:
        """The probability of the least sure of its labels; of none, that of the likeliest failing."""
        return min((self.scores[label] for label in self.labels), default=1 - max(self.scores.values()))

    @property
    def others(self) -> tuple["Several", ...]:
        return ()


@dataclass(frozen=True)
class Number:
    """A value for a text; of several outputs, `values` has each by its name, and `value` is the first."""

    value: float
    values: dict[str, float] = field(default_factory=dict)
    truncated: bool = False

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        return " ".join(f"{value:.6g}" for value in self.values.values())

    @property
    def score(self) -> float:
        return self.value

    @property
    def others(self) -> tuple["Number", ...]:
        return ()


Told = Label | Several | Number


def answer_of(network: Classifier, chances: Sequence[float], cut: bool, least: float = LIKELY) -> Told:
    """What `network.chances` say of one text; of several labels those that are at least so likely hold."""
    scores = dict(zip(network.labels, chances, strict=True))
    if network.problem_type == "regression":
        return Number(next(iter(scores.values())), scores, cut)
    best = sorted(scores, key=lambda label: -scores[label])
    if network.problem_type == "multi_label":
        return Several(tuple(label for label in best if scores[label] >= least), scores, cut)
    return Label(best[0], scores[best[0]], scores, cut)


def told_by(network: Classifier, logits: Tensor, cut: bool = False) -> Told:
    """The same of one text's logits (1, labels)."""
    return answer_of(network, network.chances(logits.float())[0].tolist(), cut)
