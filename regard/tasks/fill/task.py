"""Masked language modelling as a training task."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.recipe import Recipe
from regard.data.documents import tokenizer_texts
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.layers.inputs import TokenBatch
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.registry import Family
from regard.tasks.base import Preview, Task, reject_classifier, train_shared_tokenizer
from regard.tasks.distillation import Predicted
from regard.tasks.fill.batches import MaskedBatch, MaskOptions, masked_rows, rows_per_epoch
from regard.tasks.fill.evaluate import evaluate_task, fixed_rows, predict, prepare_split, score_batches
from regard.tasks.fill.options import FillData
from regard.tasks.fill.predict import FillPredictor
from regard.tasks.fill.sentences import SentenceDataset
from regard.tasks.inspection import Findings, warn_skipped, warn_without_validation
from regard.text.special_tokens import mask_token_of
from regard.text.vocabulary import Vocabulary

PREVIEW = 40  # tokens of a text in a preview


class Fill(Task[TokenStream | SentenceDataset]):
    """Masked language modelling, alone or with a pair task."""

    data: FillData

    predictor = FillPredictor
    evaluate = staticmethod(evaluate_task)
    name = "fill"
    scores = ("loss", "accuracy")
    supports_distillation = True

    @staticmethod
    def supports(family: Family) -> bool:
        return family.is_encoder and family.input_type is TokenBatch and not family.is_bidirectional_lm

    @staticmethod
    def create_processor(recipe: Recipe) -> Vocabulary:
        return train_shared_tokenizer(tokenizer_texts(FillData.of(recipe), "train", Path(recipe.origin)), recipe)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """An encoder with the heads that the recipe needs; a fitting head is kept. An unused pooler is frozen."""
        network = reject_classifier(loaded, recipe).network
        pair_task = FillData.of(recipe).pair_task
        kind = MaskedLM if pair_task == "none" else Pretraining
        body: Any = getattr(network, "body", network)
        if kind is Pretraining and body.pooler is None:
            named = f"data.pair_task = '{pair_task}'"
            if hasattr(body.config, "pooler"):
                raise UserError(
                    f"{named} needs a pooler, and the model has none: give pair_task = 'none', or "
                    "model.pooler = true where the model is new"
                )
            if getattr(body.config, "token_types", 0) < 2:
                raise UserError(
                    f"{named}: the model has no token types for two segments: give pair_task = 'none', or "
                    "model.token_types = 2 where the model is new"
                )
        mask_token_of(loaded.processor.target)
        if recipe.model.get("lora_rank") and not isinstance(network, kind):
            raise UserError(
                f"model.lora_rank = {recipe.model['lora_rank']}: the model has no masked LM head yet, and an adapter "
                "would not keep a new one: remove lora_rank, or start from a masked language model"
            )
        headed = network
        if type(network) is not kind:
            headed = kind(body)
            headed.lm_head = network.lm_head if isinstance(network, MaskedLM) else headed.lm_head
        if kind is MaskedLM and body.pooler is not None:
            body.pooler.requires_grad_(False)
        return loaded._replace(network=headed)

    def dataset(self, split: str) -> TokenStream | SentenceDataset | None:
        if not getattr(self.data, split):
            return None
        return prepare_split(self.data, split, self.tokenizer, self.cache, self.length, Path(self.recipe.origin))

    def plan_batches(self) -> None:
        """Rows of one length: blocks, or pairs of at most that length. A split that is too small is an error."""
        data = self.data
        size = self.options.batch_size or max(1, self.options.batch_tokens // self.length)
        self.masking = MaskOptions(
            self.length, size, self.recipe.seed, data.pair_task, data.mask_probability, data.whole_word_mask
        )
        rows = {}
        for name, split in self.splits.items():
            try:
                rows[name] = rows_per_epoch(split, self.tokenizer, self.masking)
            except UserError as error:
                raise UserError(f"data.{name}: {error}") from None
        self.rows = rows["train"]
        self.batches_per_epoch = -(-self.rows // size)

    def epoch(self, batches: int) -> float:
        return batches * self.masking.batch_size / self.rows

    def batches(self, start: int, rank: int, world: int) -> Iterator[MaskedBatch]:
        return masked_rows(self.training, self.tokenizer, self.masking, start, rank, world)

    def num_targets(self, batch: MaskedBatch) -> int:
        return len(batch.targets)

    def loss(self, network: nn.Module, batch: MaskedBatch) -> Tensor:
        """Summed cross-entropy of the masked tokens; the mean over pairs has the weight of the mean over tokens."""
        predicted = self.predict_batch(network, batch)
        smoothing = self.options.label_smoothing
        loss = F.cross_entropy(predicted.logits[0], batch.targets, label_smoothing=smoothing, reduction="sum")
        if batch.labels is not None:
            loss = loss + batch.targets_per_pair * F.cross_entropy(predicted.logits[1], batch.labels, reduction="sum")
        return self.with_distillation(loss, predicted, batch)

    def predict_batch(self, network: nn.Module, batch: MaskedBatch) -> Predicted:
        assert isinstance(network, MaskedLM)
        return predict(network, batch)

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Metrics of up to `eval_samples` rows of the validation split, always with the same masks."""
        if self.validation is None:
            return {}
        assert isinstance(network, MaskedLM)
        batches = fixed_rows(self.validation, self.tokenizer, self.masking, self.options.eval_samples)
        scores = score_batches(network, batches)
        return scores.metrics(self.data.pair_task) | {"unigram_entropy": scores.unigram_entropy}

    @torch.no_grad()
    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        """The beginnings of texts with masks, of the original texts, and of the texts with predicted tokens."""
        if self.validation is None:
            return []
        batch = next(fixed_rows(self.validation, self.tokenizer, self.masking, count))
        batch = batch.to(next(network.parameters()).device)
        masked = batch.text.tokens
        original = masked.clone()
        original[batch.at] = batch.targets
        predicted = masked.clone()
        predicted[batch.at] = self.predict_batch(network, batch).logits[0].argmax(1)
        decode = self.tokenizer.decode
        columns = (tokens[:, :PREVIEW].tolist() for tokens in (masked, original, predicted))
        return [
            Preview(self._decode_masked(row), decode(reference), decode(prediction))
            for row, reference, prediction in zip(*columns, strict=True)
        ]

    def inspect(self, splits: Mapping[str, TokenStream | SentenceDataset], findings: Findings) -> None:
        table: dict[str, dict[str, float]] = {}
        for name, split in splits.items():
            report = split.report
            rows = rows_per_epoch(split, self.tokenizer, self.masking)
            table[name] = {"documents": report.kept, "skipped": report.read - report.kept, "rows": rows}
            warn_skipped(name, report, findings)
        findings.facts["text"] = table
        findings.facts["rows"] = {
            "vocabulary": self.tokenizer.size,
            "tokens_per_row": self.length,
            "rows_per_batch": self.masking.batch_size,
            "batches_per_epoch": self.batches_per_epoch,
        }
        warn_without_validation(splits, findings)

    def _decode_masked(self, tokens: list[int]) -> str:
        """A text with its mask tokens visible."""
        mask = mask_token_of(self.tokenizer)
        masks = [position for position, token in enumerate(tokens) if token == mask]
        segments = [tokens[before + 1 : after] for before, after in pairwise([-1, *masks, len(tokens)])]
        return f" {self.tokenizer.name(mask)} ".join(map(self.tokenizer.decode, segments))
