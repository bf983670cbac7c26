"""The three problem types: single-label, multi-label and regression. All that differs between them is here.

Shapes: logits (batch, labels); targets (batch), multi-label (batch, labels) with 1.0 where a label holds.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.targets import Labelled, RegressionTargets, Targets, targets_of
from regard.errors import UserError
from regard.metrics import classification, correlation
from regard.models.heads.sequence import Classifier
from regard.tasks.base import Findings
from regard.tasks.classify.options import ClassifyTrain
from regard.tasks.classify.predictions import DEFAULT_THRESHOLD, Label, LabelSet, Prediction, Value

RARE = 10  # samples of a label in train


@dataclass
class ProblemType(ABC):
    """Loss, metrics, predictions and reports of one problem type."""

    network: Classifier
    weights: Tensor | None = None  # of each label
    smoothing: float = 0.0
    metric: ClassVar[str]  # by which two models are compared
    higher_is_better: ClassVar[bool] = True
    constant: ClassVar[str]  # the prediction of the baseline, for people
    run_options: ClassVar[tuple[str, ...]] = ()

    scores: ClassVar[tuple[str, ...]]  # validation metrics; the first one selects the best checkpoint

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss summed over the samples."""

    @abstractmethod
    def validation_metrics(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        """Loss and metrics of a validation."""

    @abstractmethod
    def constant_logits(self, targets: Tensor) -> Tensor:
        """The logits, the same for every text, that fit these targets best."""

    def baseline(self, targets: Tensor) -> dict[str, float]:
        """The validation metrics of a constant prediction."""
        return self.validation_metrics(self.constant_logits(targets), targets)

    @abstractmethod
    def prediction(self, probabilities: Sequence[float], truncated: bool, threshold: float) -> Prediction:
        """The prediction for one text."""

    @abstractmethod
    def report(self, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, Any]:
        """Metrics with intervals."""

    @abstractmethod
    def metric_of(self, prediction: Any, target: Any) -> float:
        """The metric of a single prediction."""

    @staticmethod
    def parse(target: str) -> Any:
        """A target as it is reported; datasets keep it as text."""
        return target

    @staticmethod
    def value_of(prediction: Any) -> Any:
        """A prediction in the form of a target."""
        return prediction.label

    def balance(self, dataset: Labelled, targets: Targets) -> None:
        """Let rare labels count as much as frequent ones."""
        self.weights = targets.balanced_weights(dataset)

    def inspect(self, splits: Mapping[str, Labelled], findings: Findings) -> None:
        """How many samples each label has in each split; a warning for rare ones."""
        labels = self.network.labels
        targets = targets_of(self.network.problem_type, labels)
        table: dict[str, dict[str, int]] = {label: {} for label in labels}
        for name, split in splits.items():
            for label, count in zip(labels, targets.counts(split).tolist(), strict=True):
                table[label][name] = count
        findings.facts["labels"] = table
        rare = [label for label, counts in table.items() if counts["train"] < RARE]
        if rare:
            few = f"fewer than {RARE} samples of {', '.join(rare)}"
            findings.warnings.append(f"train: {few}, which may be too few to learn from")

    def _weights(self, logits: Tensor) -> Tensor | None:
        return None if self.weights is None else self.weights.to(logits.device)


class SingleLabel(ProblemType):
    """One label per input: softmax and cross-entropy. Targets may be probabilities (batch, labels) in training."""

    metric = "accuracy"
    constant = "always predicting the most frequent label (majority baseline)"

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        f1 = ("f1",) if len(self.network.labels) == 2 else ()
        top5 = ("top5_accuracy",) if len(self.network.labels) > classification.TOP else ()
        return ("accuracy", "macro_f1", "matthews_correlation", *f1, *top5, "loss")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.smoothing
        return F.cross_entropy(logits, targets, self._weights(logits), label_smoothing=smoothing, reduction="sum")

    def validation_metrics(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        table = classification.confusion(logits.argmax(1).tolist(), targets.tolist(), len(self.network.labels))
        metrics = {"loss": float(F.cross_entropy(logits, targets)), **classification.single_label_metrics(table)}
        if len(self.network.labels) > classification.TOP:
            in_top = classification.top_k_accuracy(logits.numpy(), targets.tolist())
            metrics["top5_accuracy"] = float(in_top.mean())
        return metrics

    def constant_logits(self, targets: Tensor) -> Tensor:
        return torch.bincount(targets, minlength=len(self.network.labels)).log().expand(len(targets), -1)

    def prediction(self, probabilities: Sequence[float], truncated: bool, threshold: float) -> Label:
        scores = dict(zip(self.network.labels, probabilities, strict=True))
        best = max(scores, key=lambda label: scores[label])
        return Label(best, scores[best], scores, truncated)

    def report(self, predictions: Sequence[Label], targets: Sequence[str]) -> dict[str, Any]:
        labels = self.network.labels
        indices = {label: index for index, label in enumerate(labels)}
        scores = np.array([[each.scores[label] for label in labels] for each in predictions])
        return classification.single_label_report(scores, [indices[target] for target in targets], labels)

    def metric_of(self, prediction: Label, target: str) -> float:
        return 100.0 * (prediction.label == target)


class MultiLabel(ProblemType):
    """Any number of labels per text: a sigmoid and binary cross-entropy each; the loss of a text is their mean."""

    metric = "subset_accuracy"
    constant = "always predicting the labels of most texts"
    run_options = ("threshold",)
    scores = ("micro_f1", "macro_f1", "subset_accuracy", "loss")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        weights = self._weights(logits)
        losses = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")
        return losses.mean(1).sum()

    def validation_metrics(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        predicted = (logits.sigmoid() >= DEFAULT_THRESHOLD).numpy()
        metrics = classification.multi_label_metrics(predicted, targets.numpy() > 0)
        return {"loss": float(F.binary_cross_entropy_with_logits(logits, targets)), **metrics}

    def constant_logits(self, targets: Tensor) -> Tensor:
        return targets.mean(0).logit(1e-6).expand(len(targets), -1)

    def prediction(self, probabilities: Sequence[float], truncated: bool, threshold: float) -> LabelSet:
        scores = dict(zip(self.network.labels, probabilities, strict=True))
        ranked = sorted(scores, key=lambda label: -scores[label])
        return LabelSet(tuple(label for label in ranked if scores[label] >= threshold), scores, truncated)

    def report(self, predictions: Sequence[LabelSet], targets: Sequence[list[str]]) -> dict[str, Any]:
        labels = self.network.labels
        probabilities = np.array([[each.scores[label] for label in labels] for each in predictions])
        held = np.array([[label in target for label in labels] for target in targets])
        return classification.multi_label_report(probabilities, held, labels, DEFAULT_THRESHOLD)

    def metric_of(self, prediction: LabelSet, target: list[str]) -> float:
        return 100.0 * ({*prediction.labels} == {*target})

    @staticmethod
    def parse(target: str) -> list[str]:
        return json.loads(target)

    @staticmethod
    def value_of(prediction: LabelSet) -> tuple[str, ...]:
        return prediction.labels


class Regression(ProblemType):
    """A value per text: the squared error, in units of the network's scale."""

    metric = "mse"
    constant = "always predicting the mean"
    higher_is_better = False
    scores = ("pearsonr", "spearmanr", "mse", "loss")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        scale = self.network.scale
        return F.mse_loss(logits[:, 0] / scale, targets / scale, reduction="sum")

    def validation_metrics(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        predicted = logits[:, 0].numpy()
        expected = targets.numpy()
        return {
            "loss": float(self.loss(logits, targets)) / len(targets),
            "pearsonr": 100 * correlation.pearson(predicted, expected),
            "spearmanr": 100 * correlation.spearman(predicted, expected),
            "mse": correlation.squared_error(predicted, expected),
        }

    def constant_logits(self, targets: Tensor) -> Tensor:
        return targets.mean().expand(len(targets), 1)

    def prediction(self, probabilities: Sequence[float], truncated: bool, threshold: float) -> Value:
        values = dict(zip(self.network.labels, probabilities, strict=True))
        return Value(next(iter(values.values())), values, truncated)

    def report(self, predictions: Sequence[Value], targets: Sequence[float]) -> dict[str, Any]:
        scores = correlation.report([each.value for each in predictions], targets)
        return {"mean_baseline_mse": float(np.var(targets)), "scores": scores}

    def metric_of(self, prediction: Value, target: float) -> float:
        return (prediction.value - target) ** 2

    @staticmethod
    def parse(target: str) -> float:
        return float(target)

    @staticmethod
    def value_of(prediction: Value) -> float:
        return prediction.value

    def inspect(self, splits: Mapping[str, Labelled], findings: Findings) -> None:
        """The distribution of the targets in each split."""
        table = {}
        for name, split in splits.items():
            values = RegressionTargets().values(split)
            statistics = ("min", "mean", "max", "std") if len(values) else ()
            table[name] = {statistic: float(getattr(values, statistic)()) for statistic in statistics}
        findings.facts["numbers"] = table


PROBLEM_TYPES: dict[str, type[ProblemType]] = {
    "single_label": SingleLabel,
    "multi_label": MultiLabel,
    "regression": Regression,
}


def problem_type_of(network: Classifier) -> ProblemType:
    return PROBLEM_TYPES[network.problem_type](network)


def training_problem_type(network: Classifier, options: ClassifyTrain) -> ProblemType:
    """The problem type with its training options; those that it does not have are an error."""
    problem_type = problem_type_of(network)
    if options.label_smoothing and network.problem_type != "single_label":
        raise UserError(f"train.label_smoothing = {options.label_smoothing} is for single-label classification")
    if options.class_weights != "none" and network.problem_type == "regression":
        raise UserError(f"train.class_weights = '{options.class_weights}': regression has no classes")
    problem_type.smoothing = options.label_smoothing
    return problem_type
