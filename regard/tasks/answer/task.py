"""Answering questions from texts that hold the answers: its data, loss, score and answer. Devlin et al. 2019, 4.2.

    [CLS] question [SEP] text [SEP] ─▶ encoder ─▶ two logits a place ─▶ where the answer begins, where it ends

A window that does not hold the answer points at [CLS] (section 4.3).

Shapes: logits (batch, length, 2), first and last (batch).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import Recipe
from regard.interop.folder import Loaded
from regard.metrics.squad import SCORES
from regard.models.heads.span import SpanClassifier
from regard.tasks.answer.batches import QABatch, collate, stream
from regard.tasks.answer.files import read
from regard.tasks.answer.options import AnswerData
from regard.tasks.answer.spans import Found, Seen, best_of, tell
from regard.tasks.answer.windows import Windows, prepare
from regard.tasks.base import Preview, Task
from regard.tasks.batching import encode_batches
from regard.text.special_tokens import with_mask_token
from regard.text.vocabulary import Vocabulary
from regard.text.vocabulary import train_tokenizer as learn_tokenizer

BATCH = 32  # windows that are read at once where nobody says how many

LONGEST = 384  # tokens of a window where nobody says, and the network reads as many


class Answer(Task[Windows]):
    """What the training loop asks of answering questions."""

    data: AnswerData

    name, unit, scores = "answer", "windows", ("f1", "exact_match", "loss")

    @staticmethod
    def train_tokenizer(recipe: Recipe) -> Vocabulary:
        """A tokenizer trained on the questions and passages of the training split, each passage once."""
        tokenizer = with_mask_token(learn_tokenizer(_texts(recipe), recipe.tokenizer, ends=False))
        return Vocabulary(tokenizer, tokenizer)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """An encoder with a new span head; one that has a span head keeps it."""
        network: Any = loaded.network
        if isinstance(network, SpanClassifier):
            return loaded
        return loaded._replace(network=SpanClassifier(getattr(network, "body", network).unpooled()))

    def max_tokens(self, requested: int, limit: int) -> int:
        return super().max_tokens(requested, limit) if requested else min(LONGEST, limit)

    def bind(self, network: Any) -> None:
        self.network = network

    def prepare(self) -> None:
        super().prepare()
        self.network.silent |= self.training.unanswered > 0

    def dataset(self, split: str) -> Windows | None:
        if not getattr(self.data, split):
            return None
        return prepare(self.data, split, self.tokenizer, self.cache, self.length, Path(self.recipe.origin))

    def batches(self, start: int, rank: int, world: int) -> Iterator[QABatch]:
        return stream(self.training, self.batching, start, rank, world)

    def num_targets(self, batch: QABatch) -> int:
        return len(batch.first)

    def loss(self, network: Any, batch: QABatch) -> Tensor:
        """The mean of the cross-entropies of the first place and of the last, summed over the windows."""
        return _loss(possible(network(batch.text), batch), batch, self.options.label_smoothing)

    @torch.no_grad()
    def validate(self, network: Any) -> dict[str, float]:
        """Loss of the windows, exact match and F1 of the answers, of the first `eval_samples` questions."""
        if self.validation is None:
            return {}
        count = min(self.options.eval_samples, self.validation.questions)
        losses: list[float] = []
        found = find(network, self.validation, range(count), told=losses.append)
        answers = [self._text(number, each) for number, each in enumerate(found)]
        golds = [[gold.text for gold in self.validation.question(number).answers] for number in range(count)]
        pairs = list(zip(answers, golds, strict=True))
        shares = {name: np.mean([score(*pair) for pair in pairs]) for name, score in SCORES.items()}
        windows = sum(len(self.validation.windows_of(number)) for number in range(count))
        return {"loss": sum(losses) / windows} | {name: 100.0 * float(share) for name, share in shares.items()}

    def preview(self, network: Any, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        numbers = range(min(count, self.validation.questions))
        found = find(network, self.validation, numbers)
        asked = [self.validation.question(number) for number in numbers]
        golds = [" | ".join(dict.fromkeys(gold.text for gold in each.answers)) for each in asked]
        told = [self._text(number, each) for number, each in zip(numbers, found, strict=True)]
        return list(map(Preview, [question.text for question in asked], golds, told))

    def _text(self, question: int, found: Found) -> str:
        """The best answer to a validation question; where all of train have one, it is never none."""
        assert self.validation is not None
        threshold = 0.0 if self.network.silent else None
        context = self.validation.question(question).context
        return tell(found, self.validation.spans(question), context, threshold)[0].text


def _texts(recipe: Recipe) -> Iterator[str]:
    context = None
    for question in read(AnswerData.of(recipe), "train", Path(recipe.origin)):
        if question.context != context:
            context = question.context
            yield context
        yield question.text


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def possible(logits: Tensor, batch: QABatch) -> Tensor:
    """Logits of where an answer may stand, the window's text and [CLS]; −∞ of the question, the marks and padding."""
    places = torch.arange(logits.shape[1], device=logits.device)
    inside = (places >= batch.context[:, :1]) & (places < batch.context[:, 1:])
    inside[:, 0] = True
    return logits.float().masked_fill(~inside[:, :, None], float("-inf"))


def _loss(logits: Tensor, batch: QABatch, smoothing: float = 0.0) -> Tensor:
    first, last = (
        _told(logits[:, :, side], wanted, smoothing) for side, wanted in enumerate((batch.first, batch.last))
    )
    return (first + last) / 2


def _told(logits: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy, summed; what smoothing takes from the right place, all that are possible share."""
    hard = F.cross_entropy(logits, wanted, reduction="sum")
    if not smoothing:
        return hard
    supports = logits.isfinite()
    even = -(logits.log_softmax(1).masked_fill(~supports, 0.0).sum(1) / supports.sum(1)).sum()
    return (1 - smoothing) * hard + smoothing * even


@torch.no_grad()
def look(
    network: Any,
    windows: Windows,
    numbers: Sequence[int],
    batch_size: int = BATCH,
    told: Callable[[float], None] = lambda loss: None,
) -> dict[int, Seen]:
    """What a network says of windows, by their numbers; read in batches of like length. `told` hears their losses."""
    seen: dict[int, Seen] = {}

    def read(some: list[int]) -> tuple[QABatch, Tensor]:
        batch = collate(windows, [numbers[each] for each in some]).to(next(network.parameters()).device)
        return batch, possible(network(batch.text), batch)

    lengths = [int(windows.lengths[number]) for number in numbers]
    for _, (batch, logits) in encode_batches(network, lengths, batch_size, read):
        told(float(_loss(logits, batch)))
        places = zip(batch.index.tolist(), logits.cpu().numpy(), batch.context.tolist(), strict=True)
        for number, each, (begin, end) in places:
            seen[number] = Seen(each[:, 0], each[:, 1], begin, end, windows.window(number).begin)
    return seen


def find(
    network: Any,
    windows: Windows,
    questions: Sequence[int],
    batch_size: int = BATCH,
    choose: Callable[[Iterable[Seen]], Found] = best_of,
    told: Callable[[float], None] = lambda loss: None,
) -> list[Found]:
    """What each of these questions may have for an answer, best first."""
    numbers = [number for question in questions for number in windows.windows_of(question)]
    seen = look(network, windows, numbers, batch_size, told)
    return [choose(seen[number] for number in windows.windows_of(question)) for question in questions]
