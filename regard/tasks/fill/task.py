"""Masked language modelling as a training task."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import Recipe
from regard.data.documents import tokenizer_texts
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.tasks.base import Preview, Task
from regard.tasks.distillation import Predicted
from regard.tasks.fill import doctor
from regard.tasks.fill.batches import MaskedBatch, MaskOptions, masked_rows, rows_per_epoch
from regard.tasks.fill.evaluate import evaluate_task
from regard.tasks.fill.evaluation_rows import fixed_rows, prepare_split
from regard.tasks.fill.head import attach_head
from regard.tasks.fill.options import FillData
from regard.tasks.fill.predict import FillPredictor
from regard.tasks.fill.scoring import predict, score_batches
from regard.tasks.fill.sentences import SentenceDataset
from regard.tasks.inspection import Findings
from regard.text.special_tokens import mask_token_of, with_mask_token
from regard.text.train_tokenizer import train_tokenizer as learn_tokenizer
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
    def train_tokenizer(recipe: Recipe) -> Vocabulary:
        """A tokenizer trained on the training split, with a mask token."""
        texts = tokenizer_texts(FillData.of(recipe), "train", Path(recipe.origin))
        tokenizer = with_mask_token(learn_tokenizer(texts, recipe.tokenizer, ends=False))
        return Vocabulary(tokenizer, tokenizer)

    attach_head = staticmethod(attach_head)

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
        return len(batch.words)

    def loss(self, network: Any, batch: MaskedBatch) -> Tensor:
        """Summed cross-entropy of the masked tokens; the mean over pairs has the weight of the mean over tokens."""
        predicted = self.predict_batch(network, batch)
        smoothing = self.options.label_smoothing
        loss = F.cross_entropy(predicted.logits[0], batch.words, label_smoothing=smoothing, reduction="sum")
        if batch.labels is not None:
            loss = loss + batch.words_per_pair * F.cross_entropy(predicted.logits[1], batch.labels, reduction="sum")
        return self.with_distillation(loss, predicted, batch)

    def predict_batch(self, network: Any, batch: MaskedBatch) -> Predicted:
        return predict(network, batch)

    def validate(self, network: Any) -> dict[str, float]:
        """Metrics of up to `eval_samples` rows of the validation split, always with the same masks."""
        if self.validation is None:
            return {}
        batches = fixed_rows(self.validation, self.tokenizer, self.masking, self.options.eval_samples)
        return score_batches(network, batches).metrics()

    @torch.no_grad()
    def preview(self, network: Any, count: int) -> list[Preview]:
        """The beginnings of texts with masks, of the original texts, and of the texts with predicted tokens."""
        if self.validation is None:
            return []
        batch = next(fixed_rows(self.validation, self.tokenizer, self.masking, count))
        batch = batch.to(next(network.parameters()).device)
        masked = batch.text.tokens
        original = masked.clone()
        original[batch.at] = batch.words
        predicted = masked.clone()
        predicted[batch.at] = predict(network, batch).logits[0].argmax(1)
        decode = self.tokenizer.decode
        columns = (tokens[:, :PREVIEW].tolist() for tokens in (masked, original, predicted))
        return [
            Preview(self._decode_masked(row), decode(reference), decode(prediction))
            for row, reference, prediction in zip(*columns, strict=True)
        ]

    def inspect(self, splits: Mapping[str, Any], findings: Findings) -> None:
        doctor.inspect(self, splits, findings)

    def _decode_masked(self, tokens: list[int]) -> str:
        """A text with its mask tokens visible."""
        mask = mask_token_of(self.tokenizer)
        segments: list[list[int]] = [[]]
        for token in tokens:
            if token == mask:
                segments.append([])
            else:
                segments[-1].append(token)
        return f" {self.tokenizer.name(mask)} ".join(self.tokenizer.decode(segment) for segment in segments)
