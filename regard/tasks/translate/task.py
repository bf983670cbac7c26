"""Translation, and any other sequence-to-sequence mapping, as a training task."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.recipe import DecodeOptions
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import Seq2SeqModel
from regard.metrics import bleu
from regard.models.registry import Family
from regard.tasks.base import Preview, SampleTask, reject_classifier
from regard.tasks.batching import by_length
from regard.tasks.inspection import Findings, inspect_coverage, inspect_leaks, inspect_lengths, inspect_samples
from regard.tasks.translate.dataset import Batch, PairDataset, Sample, collate_samples, corpus, train_vocabulary
from regard.tasks.translate.evaluate import evaluate_task
from regard.tasks.translate.options import TranslateData
from regard.tasks.translate.predict import TranslatePredictor, Translation, translate

MIN_BLEU = 1.0  # below, and without an exact match, the output has hardly a phrase of the references


class Translate(SampleTask[PairDataset]):
    """Translation: training on pairs of texts, validation by BLEU and chrF."""

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

    def max_tokens(self, requested: int, limit: int) -> int:
        capacity = limit - 1
        if not 1 <= requested <= capacity:
            raise UserError(
                f"data.max_length = {requested}, but the model reads and writes at most {capacity} tokens and an end "
                f"(model.max_positions = {limit}): lower data.max_length, or raise model.max_positions"
            )
        return requested

    def dataset(self, split: str) -> PairDataset | None:
        return corpus(self.recipe, split, self.processor, self.cache)

    def collate(self, split: PairDataset, indices: Sequence[int]) -> Batch:
        return collate_samples(split, indices, self.processor)

    def num_targets(self, batch: Batch) -> int:
        return int((batch.target.lengths - 1).sum())

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        return self._loss(network, batch, self.options.label_smoothing)

    def _loss(self, network: nn.Module, batch: Batch, smoothing: float) -> Tensor:
        """Cross-entropy of each next token, summed; padding does not count."""
        tokens = batch.target.tokens
        real = batch.target.real[:, 1:]
        logits = network(batch.source, tokens[:, :-1], real)
        return F.cross_entropy(logits.float(), tokens[:, 1:][real], label_smoothing=smoothing, reduction="sum")

    @torch.no_grad()
    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and metrics over the first `eval_samples` of the validation split."""
        if self.validation is None:
            return {}
        dataset = self.validation
        samples = _first(dataset, self.options.eval_samples)
        total = count = 0.0
        for indices in by_length(dataset.target_lengths[: len(samples)].tolist(), 64):
            batch = self.collate(dataset, indices).to(next(network.parameters()).device)
            total += float(self._loss(network, batch, 0.0))
            count += self.num_targets(batch)
        outputs = [output.text for output in self._translate(network, samples)]
        references = [sample.target for sample in samples]
        metrics = bleu.quick(outputs, references, self.recipe.tokenizer.lowercase)
        self.exact = metrics["exact"]
        self.constant_output = len({*outputs}) == 1 < len({*references})
        return {"loss": total / count, **metrics}

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
        outputs = self._translate(network, samples)
        return [Preview(*sample, output.text) for sample, output in zip(samples, outputs, strict=True)]

    def inspect(self, splits: Mapping[str, PairDataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        inspect_lengths(splits, findings)
        inspect_coverage(splits, self.processor, ("source", "target"), findings)
        inspect_leaks(splits, findings)

    def _translate(self, network: nn.Module, samples: list[Sample]) -> list[Translation]:
        assert isinstance(network, Seq2SeqModel)
        return translate(network, self.processor, [sample.source for sample in samples], DecodeOptions())


def _first(dataset: PairDataset, count: int) -> list[Sample]:
    return [dataset.text(index) for index in range(min(count, len(dataset)))]
