"""What a text is called, by `data.problem_type`: the loss of each, and the figures of a validation.

Shapes: logits (batch, labels); wanted (batch), of several labels (batch, labels) with 1.0 where one holds.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from regard.data.pairs import PairDataset
from regard.data.targets import SingleLabelTargets, Targets
from regard.errors import UserError
from regard.metrics import classification as marks
from regard.metrics import correlation
from regard.models.heads.sequence import Classifier
from regard.tasks.classify.answers import LIKELY
from regard.tasks.classify.options import ClassifyTrain


@dataclass
class One:
    """One label a text: cross-entropy."""

    labels: int
    smoothing: float = 0.0
    weights: Tensor | None = None  # of each label

    @property
    def scores(self) -> tuple[str, ...]:
        return ("accuracy", "macro_f1", "matthews_correlation", *(["f1"] if self.labels == 2 else []), "loss")

    def loss(self, logits: Tensor, wanted: Tensor) -> Tensor:
        weights = None if self.weights is None else self.weights.to(logits.device)
        return F.cross_entropy(logits, wanted, weights, label_smoothing=self.smoothing, reduction="sum")

    def figures(self, logits: Tensor, wanted: Tensor) -> dict[str, float]:
        table = marks.confusion(logits.argmax(1).tolist(), wanted.tolist(), self.labels)
        loss = float(F.cross_entropy(logits, wanted))
        return {"loss": loss, **marks.single_label_metrics(table)}


@dataclass
class Several:
    """Several labels a text, or none: each for itself, by binary cross-entropy; the mean of a text's labels."""

    weights: Tensor | None = None  # of each label, where it holds
    scores = ("micro_f1", "macro_f1", "exact", "loss")

    def loss(self, logits: Tensor, wanted: Tensor) -> Tensor:
        weights = None if self.weights is None else self.weights.to(logits.device)
        losses = F.binary_cross_entropy_with_logits(logits, wanted, pos_weight=weights, reduction="none")
        return losses.mean(1).sum()

    def figures(self, logits: Tensor, wanted: Tensor) -> dict[str, float]:
        loss = float(F.binary_cross_entropy_with_logits(logits, wanted))
        found = (logits.sigmoid() >= LIKELY).numpy()
        return {"loss": loss, **marks.multi_label_metrics(found, wanted.numpy() > 0)}


@dataclass
class Number:
    """A number a text: the squared error, in units of the network's own scale."""

    scale: float = 1.0
    scores = ("pearsonr", "spearmanr", "squared_error", "loss")

    def loss(self, logits: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(logits[:, 0] / self.scale, wanted / self.scale, reduction="sum")

    def figures(self, logits: Tensor, wanted: Tensor) -> dict[str, float]:
        found, given = logits[:, 0].numpy(), wanted.numpy()
        return {
            "loss": float(self.loss(logits, wanted)) / len(wanted),
            "pearsonr": 100 * correlation.pearson(found, given),
            "spearmanr": 100 * correlation.spearman(found, given),
            "squared_error": correlation.squared_error(found, given),
        }


Kind = One | Several | Number


def kind_of(network: Classifier, options: ClassifyTrain) -> Kind:
    """That of the labels that a network tells; options which it has no use for are refused."""
    if options.label_smoothing and network.problem_type != "single_label":
        raise UserError(f"train.label_smoothing = {options.label_smoothing} is for one label a text")
    if network.problem_type == "regression":
        if options.class_weights != "none":
            raise UserError(f"train.class_weights = '{options.class_weights}': numbers have no classes")
        return Number(network.scale)
    return Several() if network.problem_type == "multi_label" else One(len(network.labels), options.label_smoothing)


def weigh(kind: Kind, corpus: PairDataset, targets: Targets) -> None:
    """Let rare labels count as much as frequent ones."""
    assert not isinstance(kind, Number) and isinstance(targets, SingleLabelTargets)
    kind.weights = targets.balanced_weights(corpus)
