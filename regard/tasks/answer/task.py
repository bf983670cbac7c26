"""Extractive question answering as a training task. Devlin et al. 2019, section 4.2.

    [CLS] question [SEP] passage [SEP] ─▶ encoder ─▶ two logits per token ─▶ first and last token of the answer

The target of a window without the answer is [CLS] (section 4.3).

Shapes: logits (batch, length, 2), first and last (batch).
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config.options import FineTuneOptions
from regard.config.recipe import Recipe
from regard.data.splits.hashed import digests
from regard.interop.folder import Loaded
from regard.models.heads.token import SpanClassifier
from regard.tasks.answer.evaluate import evaluate_task
from regard.tasks.answer.files import read
from regard.tasks.answer.options import AnswerData
from regard.tasks.answer.predict import AnswerPredictor
from regard.tasks.answer.spans import (
    MAX_WINDOW,
    Candidates,
    find_spans,
    mask_logits,
    percentages,
    rank_answers,
    span_loss,
)
from regard.tasks.answer.windows import ABSENT, QABatch, Windows, collate, prepare
from regard.tasks.base import Preview, SampleTask, train_shared_tokenizer
from regard.tasks.inspection import Findings, inspect_samples, warn_overlaps
from regard.text.vocabulary import Vocabulary

MAX_ABSENT = 0.7  # share of windows without an answer from which on they dominate the training


class Answer(SampleTask[Windows]):
    """Extractive question answering."""

    data: AnswerData
    options: FineTuneOptions

    predictor = AnswerPredictor
    evaluate = staticmethod(evaluate_task)
    name = "answer"
    unit = "windows"
    scores = ("f1", "exact_match", "loss")

    @staticmethod
    def create_processor(recipe: Recipe) -> Vocabulary:
        """Trained on the questions and passages of the training split, each passage once."""
        questions = read(AnswerData.of(recipe), "train", Path(recipe.origin))
        grouped = groupby(questions, lambda question: question.context)
        texts = (text for context, same in grouped for text in (context, *(question.text for question in same)))
        return train_shared_tokenizer(texts, recipe)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """An encoder with a new span head; one that has a span head keeps it."""
        network: Any = loaded.network
        if isinstance(network, SpanClassifier):
            return loaded
        return loaded._replace(network=SpanClassifier(getattr(network, "body", network).unpooled()))

    def max_tokens(self, requested: int, limit: int) -> int:
        return super().max_tokens(requested, limit) if requested else min(MAX_WINDOW, limit)

    def bind(self, network: SpanClassifier) -> None:
        self.network = network

    def prepare(self) -> None:
        super().prepare()
        self.network.allows_no_answer |= self.training.unanswered > 0

    def dataset(self, split: str) -> Windows | None:
        if not getattr(self.data, split):
            return None
        return prepare(self.data, split, self.tokenizer, self.cache, self.length, Path(self.recipe.origin))

    def collate(self, split: Windows, indices: Sequence[int]) -> QABatch:
        return collate(split, indices)

    def num_targets(self, batch: QABatch) -> int:
        return len(batch.first)

    def loss(self, network: SpanClassifier, batch: QABatch) -> Tensor:
        return span_loss(mask_logits(network(batch.text), batch), batch, self.options.label_smoothing)

    @torch.no_grad()
    def validate(self, network: SpanClassifier) -> dict[str, float]:
        """Loss of the windows, and exact match and F1 of the answers, on the first `eval_samples` questions."""
        if self.validation is None:
            return {}
        count = min(self.options.eval_samples, self.validation.questions)
        losses: list[float] = []
        spans = find_spans(network, self.validation, range(count), on_loss=losses.append)
        answers = [self._answer(index, candidates) for index, candidates in enumerate(spans)]
        golds = [[gold.text for gold in self.validation.question(index).answers] for index in range(count)]
        windows = sum(len(self.validation.windows_of(index)) for index in range(count))
        metrics = {name: float(values.mean()) for name, values in percentages(answers, golds).items()}
        return {"loss": sum(losses) / windows, **metrics}

    def preview(self, network: SpanClassifier, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        indices = range(min(count, self.validation.questions))
        previews = []
        for index, candidates in zip(indices, find_spans(network, self.validation, indices), strict=True):
            question = self.validation.question(index)
            golds = " | ".join(dict.fromkeys(gold.text for gold in question.answers))
            previews.append(Preview(question.text, golds, self._answer(index, candidates)))
        return previews

    def inspect(self, splits: Mapping[str, Windows], findings: Findings) -> None:
        """Facts about the windows of each split, and passages shared between splits."""
        inspect_samples(splits, findings, self.data.max_length, size_notes=1)
        table: dict[str, dict[str, float]] = {}
        for name, windows in splits.items():
            absent = sum(windows.window(index).first == ABSENT for index in range(len(windows)))
            median, percentile_95, maximum = np.percentile(windows.lengths, (50, 95, 100)).tolist()
            table[name] = {
                "questions": windows.questions,
                "without_answer": windows.unanswered,
                "windows": len(windows),
                "windows_without_answer": absent,
                "median_tokens": median,
                "95%": percentile_95,
                "max": maximum,
            }
            if name == "train" and absent > MAX_ABSENT * len(windows):
                findings.warnings.append(
                    f"train: {absent} of {len(windows)} windows have no answer: raise data.max_length or data.stride, "
                    "so that each passage has fewer windows"
                )
        findings.facts["questions"] = table
        hashes = {
            name: digests(windows.question(index).context for index in range(windows.questions))
            for name, windows in splits.items()
        }
        problem = "questions are about passages that are in train too, so its scores are too high"
        warn_overlaps("same_text", hashes, findings, problem)

    def _answer(self, question: int, candidates: Candidates) -> str:
        """The best answer to a validation question; it may be empty if training has unanswerable questions."""
        assert self.validation is not None
        threshold = 0.0 if self.network.allows_no_answer else None
        context = self.validation.question(question).context
        return rank_answers(candidates, self.validation.spans(question), context, threshold)[0].text
