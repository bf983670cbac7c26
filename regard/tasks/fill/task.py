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
from regard.tasks.fill.guesses import guess, predict
from regard.tasks.fill.head import attach_head
from regard.tasks.fill.options import FillData
from regard.tasks.fill.predict import FillPredictor
from regard.tasks.fill.sentences import SentenceDataset
from regard.tasks.inspection import Findings
from regard.text.special_tokens import mask_token_of, with_mask_token
from regard.text.vocabulary import Vocabulary
from regard.text.vocabulary import train_tokenizer as learn_tokenizer

SHOWN = 40  # tokens of a text that is shown between steps


class Fill(Task[TokenStream | SentenceDataset]):
    """What the training loop asks of finding hidden words again, alone or beside a pair's relation."""

    data: FillData

    predictor = FillPredictor
    evaluate = staticmethod(evaluate_task)
    name, scores, supports_distillation = "fill", ("loss", "accuracy"), True

    @staticmethod
    def train_tokenizer(recipe: Recipe) -> Vocabulary:
        """A tokenizer trained on the training part, with a token that hides others."""
        texts = tokenizer_texts(FillData.of(recipe), "train", Path(recipe.origin))
        both = with_mask_token(learn_tokenizer(texts, recipe.tokenizer, ends=False))
        return Vocabulary(both, both)

    attach_head = staticmethod(attach_head)

    def dataset(self, split: str) -> TokenStream | SentenceDataset | None:
        if not getattr(self.data, split):
            return None
        return prepare_split(self.data, split, self.tokenizer, self.cache, self.length, Path(self.recipe.origin))

    def plan_batches(self) -> None:
        """Rows of one length: blocks, or pairs as long as they may be."""
        data, size = self.data, self.options.batch_size or max(1, self.options.batch_tokens // self.length)
        self.masking = MaskOptions(
            self.length, size, self.recipe.seed, data.pair_task, data.mask_probability, data.whole_word_mask
        )
        self.rows, *_ = [self._rows(name, part) for name, part in self.splits.items()]
        self.batches_per_epoch = -(-self.rows // size)

    def _rows(self, name: str, part: TokenStream | SentenceDataset) -> int:
        """How many rows a part has; one too small for any is found out before the training, not at its first score."""
        try:
            return rows_per_epoch(part, self.tokenizer, self.masking)
        except UserError as error:
            raise UserError(f"data.{name}: {error}") from None

    def epoch(self, batches: int) -> float:
        return batches * self.masking.batch_size / self.rows

    def batches(self, start: int, rank: int, world: int) -> Iterator[MaskedBatch]:
        return masked_rows(self.training, self.tokenizer, self.masking, start, rank, world)

    def num_targets(self, batch: MaskedBatch) -> int:
        return len(batch.words)

    def loss(self, network: Any, batch: MaskedBatch) -> Tensor:
        """Cross-entropy of each hidden word, summed; the mean over pairs counts as much as the mean over words."""
        found, smoothing = self.predict_batch(network, batch), self.options.label_smoothing
        loss = F.cross_entropy(found.logits[0], batch.words, label_smoothing=smoothing, reduction="sum")
        if batch.labels is not None:
            loss = loss + batch.words_per_pair * F.cross_entropy(found.logits[1], batch.labels, reduction="sum")
        return self.with_distillation(loss, found, batch)

    def predict_batch(self, network: Any, batch: MaskedBatch) -> Predicted:
        return predict(network, batch)

    def validate(self, network: Any) -> dict[str, float]:
        """Of up to `eval_samples` rows of the validation part, the same words hidden each time."""
        if self.validation is None:
            return {}
        fixed = fixed_rows(self.validation, self.tokenizer, self.masking, self.options.eval_samples)
        return guess(network, fixed).figures()

    @torch.no_grad()
    def preview(self, network: Any, count: int) -> list[Preview]:
        """The beginnings of texts with hidden words, as they were, and as the network fills them."""
        if self.validation is None:
            return []
        batch = next(fixed_rows(self.validation, self.tokenizer, self.masking, count))
        batch = batch.to(next(network.parameters()).device)
        found = [batch.text.tokens.clone() for _ in range(2)]
        found[0][batch.at], found[1][batch.at] = batch.words, predict(network, batch).logits[0].argmax(1)
        texts = zip(batch.text.tokens.tolist(), *(each.tolist() for each in found), strict=True)
        shown = [[tokens[:SHOWN] for tokens in row] for row in texts]
        decode = self.tokenizer.decode
        return [Preview(self._open(hidden), decode(wanted), decode(told)) for hidden, wanted, told in shown]

    def inspect(self, splits: Mapping[str, Any], findings: Findings) -> None:
        doctor.inspect(self, splits, findings)

    def _open(self, tokens: list[int]) -> str:
        """A text whose hidden places show."""
        mask, parts = mask_token_of(self.tokenizer), [list[int]()]
        for token in tokens:
            if token == mask:
                parts.append([])
            else:
                parts[-1].append(token)
        return f" {self.tokenizer.name(mask)} ".join(self.tokenizer.decode(part) for part in parts)
