"""Translation, and any other sequence-to-sequence mapping, as a training task."""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.recipe import DecodeOptions
from regard.errors import UserError
from regard.metrics import bleu as scores
from regard.models.registry import Family
from regard.tasks.base import Preview, Task, reject_classifier
from regard.tasks.batching import by_length
from regard.tasks.inspection import Findings, inspect_coverage, inspect_leaks, inspect_lengths, inspect_samples
from regard.tasks.translate.dataset import Batch, PairDataset, Sample, collate, corpus, learn_vocabulary, stream
from regard.tasks.translate.evaluate import evaluate_task
from regard.tasks.translate.options import TranslateData
from regard.tasks.translate.predict import TranslatePredictor, Translation, translate


class Translate(Task[PairDataset]):
    """What the training loop asks of translation."""

    data: TranslateData

    predictor = TranslatePredictor
    evaluate = staticmethod(evaluate_task)
    name, scores = "translate", ("bleu", "chrf", "exact", "loss")
    train_tokenizer = staticmethod(learn_vocabulary)
    attach_head = staticmethod(reject_classifier)

    @staticmethod
    def supports(family: Family) -> bool:
        return family.is_encoder_decoder

    def max_tokens(self, requested: int, limit: int) -> int:
        room = limit - 1
        if not 1 <= requested <= room:
            raise UserError(
                f"data.max_length = {requested}, but the model reads and writes at most {room} tokens and an end "
                f"(model.max_positions = {limit}): lower data.max_length, or raise model.max_positions"
            )
        return requested

    def dataset(self, split: str) -> PairDataset | None:
        return corpus(self.recipe, split, self.vocabulary, self.cache)

    def batches(self, start: int, rank: int, world: int) -> Iterator[Batch]:
        return stream(self.training, self.vocabulary, self.batching, start, rank, world)

    def num_targets(self, batch: Batch) -> int:
        return int((batch.target.lengths - 1).sum())

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        return self._loss(network, batch, self.options.label_smoothing)

    def _loss(self, network: nn.Module, batch: Batch, smoothing: float) -> Tensor:
        """Cross-entropy of each next token, summed; padding does not count."""
        tokens, real = batch.target.tokens, batch.target.real[:, 1:]
        logits = network(batch.source, tokens[:, :-1], real)
        return F.cross_entropy(logits.float(), tokens[:, 1:][real], label_smoothing=smoothing, reduction="sum")

    @torch.no_grad()
    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and scores over the first `eval_samples` of the validation part."""
        if self.validation is None:
            return {}
        found = self._chosen(self.validation, self.options.eval_samples)
        total = count = 0.0
        for numbers in by_length(self.validation.target_lengths[: len(found)].tolist(), 64):
            pairs = [(self.validation.source(i), self.validation.target(i)) for i in numbers]
            batch = collate([pair[0] for pair in pairs], [pair[1] for pair in pairs], self.vocabulary)
            batch = batch.to(next(network.parameters()).device)
            total, count = total + float(self._loss(network, batch, 0.0)), count + self.num_targets(batch)
        answers = [answer.text for answer in self._answers(network, [sample.source for sample in found])]
        references = [sample.target for sample in found]
        return {"loss": total / count, **scores.quick(answers, references, self.recipe.tokenizer.lowercase)}

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        found = self._chosen(self.validation, count)
        answers = self._answers(network, [sample.source for sample in found])
        return [Preview(pair.source, pair.target, answer.text) for pair, answer in zip(found, answers, strict=True)]

    def inspect(self, splits: Mapping[str, PairDataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        inspect_lengths(splits, findings)
        inspect_coverage(splits, self.vocabulary, ("source", "target"), findings)
        inspect_leaks(splits, findings)

    def _answers(self, network: nn.Module, texts: list[str]) -> list[Translation]:
        return translate(network, self.vocabulary, texts, DecodeOptions())

    def _chosen(self, part: PairDataset, count: int) -> list[Sample]:
        return [part.text(i) for i in range(min(count, len(part)))]
