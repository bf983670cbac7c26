"""Predictions of classifiers: a label, a set of labels, or a value."""

from dataclasses import dataclass, field

from regard.tasks.predictor import Unranked

DEFAULT_THRESHOLD = 0.5  # probability from which on a label of several is predicted


@dataclass(frozen=True)
class Label(Unranked):
    """The predicted label. `score` is its probability among all `scores`, an uncalibrated softmax."""

    label: str
    score: float
    scores: dict[str, float] = field(default_factory=dict)
    truncated: bool = False  # the text was truncated

    def __str__(self) -> str:
        return f"{self.label} ({self.score:.2f}, uncalibrated)"

    @property
    def text(self) -> str:
        return self.label


@dataclass(frozen=True)
class LabelSet(Unranked):
    """The predicted labels of a multi-label text, most probable first."""

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
        """The least probability of its labels; without labels, that of the most probable one not to hold."""
        return min((self.scores[label] for label in self.labels), default=1 - max(self.scores.values()))


@dataclass(frozen=True)
class Value(Unranked):
    """The predicted value; with several outputs, `values` has each by name, and `value` is the first."""

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


Prediction = Label | LabelSet | Value
