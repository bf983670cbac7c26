"""Classification and regression as a training task."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import Recipe
from regard.data.processor import Processor
from regard.data.targets import targets_of
from regard.interop.folder import Loaded
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, Family
from regard.tasks.base import Preview, SampleTask
from regard.tasks.batching import by_length
from regard.tasks.classify.evaluate import evaluate_task
from regard.tasks.classify.modality import LabelledBatch, LabelledSamples, modality_of
from regard.tasks.classify.options import ClassifyData, ClassifyTrain
from regard.tasks.classify.predict import BATCH, ClassifyPredictor, classify
from regard.tasks.classify.problem_type import training_problem_type
from regard.tasks.distillation import Predicted
from regard.tasks.inspection import Findings, inspect_samples
from regard.tasks.predictor import Inference


class Classify(SampleTask[LabelledSamples]):
    """Classification or regression of inputs of any modality."""

    data: ClassifyData
    options: ClassifyTrain

    predictor = ClassifyPredictor
    evaluate = staticmethod(evaluate_task)
    name = "classify"
    supports_distillation = True

    @staticmethod
    def create_processor(recipe: Recipe) -> Processor:
        return modality_of(FAMILIES[recipe.model["family"]].input_type).create_processor(recipe)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        network: Any = loaded.network
        return modality_of(network.input_type).attach_head(loaded, recipe)

    @staticmethod
    def supports(family: Family) -> bool:
        return not family.is_encoder_decoder

    def bind(self, network: Classifier) -> None:
        self.problem_type = training_problem_type(network, self.options)
        self.scores = self.problem_type.scores
        self.constant = self.problem_type.constant
        self.targets = targets_of(network.problem_type, network.labels)
        self.modality = modality_of(network.input_type)(self.recipe, self.data, self.processor, network)
        self.modality.check_options()
        self.unit = self.modality.unit
        self.labels = network.labels if network.problem_type != "regression" else ()

    def prepare(self) -> None:
        super().prepare()
        if self.options.class_weights == "balanced":
            self.problem_type.balance(self.training, self.targets)

    @property
    def reports(self) -> dict[str, str]:
        """How many samples of each split were kept and skipped, in words; and the labels."""
        return super().reports | ({"labels": ", ".join(self.labels)} if self.labels else {})

    def dataset(self, split: str) -> LabelledSamples | None:
        if not getattr(self.data, split):
            return None
        return self.modality.prepare(split, self.targets, self.cache, self.length)

    def training_batch(self, indices: Sequence[int], epoch: int) -> LabelledBatch:
        return self.collate(self.training, self.modality.repeat(indices), epoch)

    def collate(self, split: LabelledSamples, indices: Sequence[int], epoch: int | None = None) -> LabelledBatch:
        inputs = self.modality.collate(split, indices, epoch)
        labels = self.targets.tensor([split.target(index) for index in indices])
        if epoch is not None:
            labels = self.modality.mix_targets(labels, indices, epoch)
        return LabelledBatch(inputs, labels, torch.tensor(list(indices), dtype=torch.int64))

    def num_targets(self, batch: LabelledBatch) -> int:
        return len(batch.labels)

    def loss(self, network: Classifier, batch: LabelledBatch) -> Tensor:
        """The loss of each label, and `lm_loss_weight` times the mean loss of its text's tokens, summed.

        Radford et al. 2018, equation 5.
        """
        predicted = self.predict_batch(network, batch)
        loss = self.problem_type.loss(predicted.logits[0], batch.labels)
        if predicted.distilled and self.teacher is None:  # without a teacher, both heads learn the labels
            loss = (loss + self.problem_type.loss(predicted.distilled[0], batch.labels)) / 2
        if self.options.lm_loss_weight:
            loss = loss + self.options.lm_loss_weight * _lm_loss(network, predicted.states, batch)
        return self.with_distillation(loss, predicted, batch)

    def predict_batch(self, network: Classifier, batch: LabelledBatch) -> Predicted:
        states, logits, distilled = network.label(batch.inputs)
        real = getattr(batch.inputs, "real", slice(None))
        return Predicted(states, (logits.float(),), real, () if distilled is None else (distilled.float(),))

    @torch.no_grad()
    def validate(self, network: Classifier) -> dict[str, float]:
        """Loss and metrics over the first `eval_samples` of the validation split."""
        if self.validation is None:
            return {}
        count = min(self.options.eval_samples, len(self.validation))
        logits: dict[int, Tensor] = {}
        labels: dict[int, Tensor] = {}
        for indices in by_length(self.validation.source_lengths[:count].tolist(), BATCH):
            batch = self.collate(self.validation, indices).to(next(network.parameters()).device)
            logits |= zip(indices, network(batch.inputs).float().cpu(), strict=True)
            labels |= zip(indices, batch.labels.cpu(), strict=True)
        in_order = range(count)
        return self.problem_type.validation_metrics(
            torch.stack([logits[index] for index in in_order]), torch.stack([labels[index] for index in in_order])
        )

    def baseline(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        count = min(self.options.eval_samples, len(self.validation))
        return self.problem_type.baseline(self.targets.tensor([self.validation.target(i) for i in range(count)]))

    def preview(self, network: Classifier, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        size = len(self.validation)
        count = min(count, size)
        samples = [self.validation.text(index * size // count) for index in range(count)]  # not of one label
        inputs = [self.modality.value(sample.source) for sample in samples]
        predictions = classify(self.modality, inputs, Inference(truncate=True))
        references = [", ".join(self.targets.labels_of(sample.target)) for sample in samples]
        return list(map(Preview, map(self.modality.show, inputs), references, map(str, predictions)))

    def inspect(self, splits: Mapping[str, LabelledSamples], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        self.modality.inspect(splits, findings)
        self.problem_type.inspect(splits, findings)


def _lm_loss(network: Classifier, states: Tensor, batch: LabelledBatch) -> Tensor:
    """The mean loss of each text's tokens after the first, summed over the texts."""
    real = batch.inputs.real[:, 1:]
    logits = network.body.output(states[:, :-1][real]).float()
    losses = F.cross_entropy(logits, batch.inputs.tokens[:, 1:][real], reduction="none")
    counts = (batch.inputs.lengths - 1).clamp(min=1)[:, None].expand(real.shape)[real]
    return (losses / counts).sum()
