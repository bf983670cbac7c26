"""Classification and regression as a training task."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import Recipe
from regard.data.pairs import PairDataset
from regard.data.targets import targets_of
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, Family
from regard.tasks.base import Preview, Task
from regard.tasks.batching import by_length, show_text
from regard.tasks.classify.dataset import Encoders, LabelledBatch, PairEncoder, collate, prepare, split_pair, stream
from regard.tasks.classify.evaluate import evaluate_task
from regard.tasks.classify.files import PAIR_SEPARATOR, read
from regard.tasks.classify.head import attach_head
from regard.tasks.classify.options import ClassifyData
from regard.tasks.classify.predict import BATCH, ClassifyPredictor, classify
from regard.tasks.classify.problem_type import training_problem_type
from regard.tasks.distillation import Predicted
from regard.tasks.inspection import Findings, inspect_coverage, inspect_leaks, inspect_lengths, inspect_samples
from regard.text.special_tokens import with_end_token, with_mask_token
from regard.text.vocabulary import Vocabulary
from regard.text.vocabulary import train_tokenizer as learn_tokenizer


class Classify(Task[PairDataset]):
    """What the training loop asks of telling texts apart."""

    data: ClassifyData

    predictor = ClassifyPredictor
    evaluate = staticmethod(evaluate_task)
    name, unit, supports_distillation = "classify", "texts", True

    @staticmethod
    def train_tokenizer(recipe: Recipe) -> Vocabulary:
        """A tokenizer trained on the texts of the training part; for an encoder one that also marks their beginning."""
        records = read(ClassifyData.of(recipe), "train", Path(recipe.origin))
        texts = (text for record in records for text in record.source.split(PAIR_SEPARATOR))
        family = FAMILIES.get(recipe.model.get("family", ""))
        around = with_mask_token if family and family.is_encoder else with_end_token
        both = around(learn_tokenizer(texts, recipe.tokenizer, ends=False))
        return Vocabulary(both, both)

    attach_head = staticmethod(attach_head)

    @staticmethod
    def supports(family: Family) -> bool:
        return not family.is_encoder_decoder

    def bind(self, network: Any) -> None:
        self.problem_type = training_problem_type(network, self.options)
        self.scores = self.problem_type.scores
        self.targets = targets_of(network.problem_type, network.labels)
        self.sides = Encoders(PairEncoder(self.tokenizer, bool(self.data.text_pair)), self.targets)
        self.tells = network.labels if network.problem_type != "regression" else ()

    def prepare(self) -> None:
        super().prepare()
        if self.options.class_weights == "balanced":
            self.problem_type.balance(self.training, self.targets)

    @property
    def reports(self) -> dict[str, str]:
        """What became of each part's samples, in words; of train also its labels."""
        return super().reports | ({"labels": ", ".join(self.tells)} if self.tells else {})

    def dataset(self, split: str) -> PairDataset | None:
        if not getattr(self.data, split):
            return None
        return prepare(self.data, split, self.sides, self.cache, self.length, Path(self.recipe.origin))

    def batches(self, start: int, rank: int, world: int) -> Iterator[LabelledBatch]:
        return stream(self.training, self.sides, self.batching, start, rank, world)

    def num_targets(self, batch: LabelledBatch) -> int:
        return len(batch.labels)

    def loss(self, network: Any, batch: LabelledBatch) -> Tensor:
        """The loss of each label, and `auxiliary` times the mean of its text's tokens (equation 5), summed."""
        found = self.predict_batch(network, batch)
        loss = self.problem_type.loss(found.logits[0], batch.labels)
        if self.options.lm_loss_weight:
            loss = loss + self.options.lm_loss_weight * _text_loss(network, found.states, batch)
        return self.with_distillation(loss, found, batch)

    def predict_batch(self, network: Any, batch: LabelledBatch) -> Predicted:
        states, logits = network.label(batch.text)
        return Predicted(states, (logits.float(),))

    @torch.no_grad()
    def validate(self, network: Any) -> dict[str, float]:
        """Loss and scores over the first `eval_samples` of the validation part."""
        if self.validation is None:
            return {}
        count, rows = min(self.options.eval_samples, len(self.validation)), dict[int, tuple[Tensor, Tensor]]()
        for numbers in by_length(self.validation.source_lengths[:count].tolist(), BATCH):
            batch = collate(self.validation, numbers, self.sides).to(next(network.parameters()).device)
            logits = network(batch.text).float()
            rows |= dict(zip(numbers, zip(logits.cpu(), batch.labels.cpu(), strict=True), strict=True))
        logits, wanted = (torch.stack(each) for each in zip(*(rows[number] for number in range(count)), strict=True))
        return self.problem_type.validation_metrics(logits, wanted)

    def preview(self, network: Any, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        found = [self.validation.text(number) for number in range(min(count, len(self.validation)))]
        texts = [split_pair(each.source, self.sides.source.paired) for each in found]
        answers = classify(network, self.sides.source, texts)
        wanted = [", ".join(self.targets.labels_of(each.target)) for each in found]
        return list(map(Preview, map(show_text, texts), wanted, map(str, answers)))

    def inspect(self, splits: Mapping[str, PairDataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        inspect_lengths(splits, findings)
        self.problem_type.inspect(splits, findings)
        inspect_coverage(splits, self.vocabulary, ("source",), findings)
        inspect_leaks(splits, findings)


def _text_loss(network: Classifier, states: Tensor, batch: LabelledBatch) -> Tensor:
    """The mean loss of each text's tokens after the first, summed over the texts."""
    real = batch.text.real[:, 1:]
    logits = network.body.output(states[:, :-1][real]).float()
    losses = F.cross_entropy(logits, batch.text.tokens[:, 1:][real], reduction="none")
    counts = (batch.text.lengths - 1).clamp(min=1)[:, None].expand(real.shape)[real]
    return (losses / counts).sum()
