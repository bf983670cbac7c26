"""Translation, and any other sequence-to-sequence mapping, as a training task."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from regard.config.recipe import DecodeOptions
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import Seq2SeqModel
from regard.metrics import bleu, pronunciations
from regard.models.registry import Family
from regard.tasks.base import Preview, reject_classifier
from regard.tasks.inspection import Findings, inspect_coverage, inspect_leaks, inspect_lengths, inspect_samples
from regard.tasks.seq2seq import Seq2SeqBatch, Seq2SeqTask
from regard.tasks.translate.dataset import (
    PairDataset,
    Sample,
    collate_samples,
    corpus,
    group_references,
    train_vocabulary,
)
from regard.tasks.translate.evaluate import evaluate_task
from regard.tasks.translate.options import TranslateData
from regard.tasks.translate.predict import TranslatePredictor, Translation, translate

MIN_BLEU = 1.0  # below, and without an exact match, the output has hardly a phrase of the references


class Translate(Seq2SeqTask[PairDataset]):
    """Translation: training on pairs of texts, validation by BLEU and chrF, of pronunciations by error rates."""

    data: TranslateData
    exact: float = 100.0  # of the last validation
    constant_output: bool = False

    predictor = TranslatePredictor
    evaluate = staticmethod(evaluate_task)
    name = "translate"
    scores = ("bleu", "chrf", "exact", "loss")
    create_processor = staticmethod(train_vocabulary)
    attach_head = staticmethod(reject_classifier)

    @staticmethod
    def supports(family: Family) -> bool:
        return family.is_encoder_decoder and family.input_type is TokenBatch

    def bind(self, network: Any) -> None:
        if self.data.pronunciations:
            self.scores = ("wer", "per", "loss")

    def dataset(self, split: str) -> PairDataset | None:
        return corpus(self.recipe, split, self.processor, self.cache)

    def collate(self, split: PairDataset, indices: Sequence[int]) -> Seq2SeqBatch:
        return collate_samples(split, indices, self.processor)

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and metrics over the first `eval_samples` of the validation split."""
        if self.validation is None:
            return {}
        samples = _first(self.validation, self.options.eval_samples)
        loss = self.mean_loss(network, self.validation, len(samples))
        if self.data.pronunciations:
            references = group_references(samples)
            outputs = [output.text for output in self._translate(network, list(references))]
            return {"loss": loss, **pronunciations.quick(outputs, list(references.values()))}
        outputs = [output.text for output in self._translate(network, [sample.source for sample in samples])]
        targets = [sample.target for sample in samples]
        metrics = bleu.quick(outputs, targets, self.recipe.tokenizer.lowercase)
        self.exact = metrics["exact"]
        self.constant_output = len({*outputs}) == 1 < len({*targets})
        return {"loss": loss, **metrics}

    def score_warning(self, score: float) -> str:
        problem = ""
        if self.constant_output:
            problem = "all validation outputs are equal"
        elif self.score_name == "bleu" and score < MIN_BLEU and not self.exact:
            problem = f"validation bleu {score:.2g} is below {MIN_BLEU:g}, without an exact match"
        advice = "Train longer (thousands of updates: train.max_steps, train.minutes), or add training pairs"
        return f"{problem}: the model has not learned to use its input. {advice}" if problem else ""

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        samples = _first(self.validation, count)
        outputs = self._translate(network, [sample.source for sample in samples])
        return [Preview(*sample, output.text) for sample, output in zip(samples, outputs, strict=True)]

    def inspect(self, splits: Mapping[str, PairDataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        inspect_lengths(splits, findings)
        inspect_coverage(splits, self.processor, ("source", "target"), findings)
        inspect_leaks(splits, findings)

    def _translate(self, network: nn.Module, sources: list[str]) -> list[Translation]:
        assert isinstance(network, Seq2SeqModel)
        return translate(network, self.processor, sources, DecodeOptions())


def _first(dataset: PairDataset, count: int) -> list[Sample]:
    return [dataset.text(index) for index in range(min(count, len(dataset)))]
