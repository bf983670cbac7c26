"""Translation, and whatever else turns one text into another: its data, loss, score and answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.decoding.sampling import key_of
from regard.decoding.search import Hypothesis, search
from regard.errors import UserError
from regard.inputs.batch import Batch, Sequences, collate, stream
from regard.inputs.corpus import Corpus, Sample
from regard.inputs.text import Vocabulary
from regard.models import Family
from regard.recipe import DecodeOptions
from regard.tasks import scores
from regard.tasks.alignment import align, look
from regard.tasks.fitting import bare
from regard.tasks.parallel import corpus, learn_vocabulary
from regard.tasks.parted import Parted
from regard.tasks.rows import Row, by_length, check_texts, too_long


@dataclass(frozen=True)
class Translation:
    """One answer. `score` is the length-normalised log-probability; `others` are the next best, on request."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()  # as written, without the end
    finished: bool = True  # False: cut off at the longest length allowed
    truncated: bool = False  # the input was cut
    alignment: tuple[tuple[int, int], ...] | None = None  # (source token, target token) pairs, on request
    others: tuple["Translation", ...] = ()


class Translate(Parted[Corpus]):
    """What the training loop asks of translation."""

    name, scores = "translate", ("bleu", "chrf", "exact", "loss")
    learn = staticmethod(learn_vocabulary)
    fit = staticmethod(bare)

    @staticmethod
    def able(family: Family) -> bool:
        return family.translates

    def longest(self, wanted: int, limit: int) -> int:
        room = limit - 1
        if not 1 <= wanted <= room:
            raise UserError(
                f"data.max_length = {wanted}, but the model reads and writes at most {room} tokens and an end "
                f"(model.limit = {limit}): lower data.max_length, or raise model.limit"
            )
        return wanted

    def corpus(self, part: str) -> Corpus | None:
        return corpus(self.recipe, part, self.vocabulary, self.cache)

    def batches(self, start: int, rank: int, world: int) -> Iterator[Batch]:
        return stream(self.training, self.vocabulary, self.batching, start, rank, world)

    def count(self, batch: Batch) -> int:
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
            total, count = total + float(self._loss(network, batch, 0.0)), count + self.count(batch)
        answers = [answer.text for answer in self._answers(network, [sample.source for sample in found])]
        references = [sample.target for sample in found]
        return {"loss": total / count, **scores.quick(answers, references, self.recipe.tokenizer.lowercase)}

    def samples(self, network: nn.Module, count: int) -> list[tuple[str, str, str]]:
        if self.validation is None:
            return []
        found = self._chosen(self.validation, count)
        answers = self._answers(network, [sample.source for sample in found])
        return [(pair.source, pair.target, answer.text) for pair, answer in zip(found, answers, strict=True)]

    def _answers(self, network: nn.Module, texts: list[str]) -> list[Translation]:
        return translate(network, self.vocabulary, texts, DecodeOptions())

    def _chosen(self, part: Corpus, count: int) -> list[Sample]:
        return [part.text(i) for i in range(min(count, len(part)))]


def translate(
    network: Any,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    options: DecodeOptions,
    batch_size: int = 64,
    truncate: bool = False,
    alignments: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Translation]:
    """An answer to each text, searched for in batches of like length. An empty text has an empty answer."""
    rows = read(network, vocabulary, texts, truncate)
    empty = Translation("", 0.0, alignment=() if alignments else None)
    answers: list[Translation | None] = [None if row.tokens else empty for row in rows]
    for numbers in by_length([len(row.tokens) for row in rows], batch_size):
        full = [number for number in numbers if rows[number].tokens]
        found = generate(network, vocabulary, [rows[number].tokens for number in full], options) if full else []
        for number, hypotheses in zip(full, found, strict=True):
            best, *others = (_translation(vocabulary, each) for each in hypotheses)
            seen = align(look(network, vocabulary, rows[number].tokens, list(best.tokens))) if alignments else None
            answers[number] = replace(best, truncated=rows[number].cut, alignment=seen, others=tuple(others))
        progress(len(numbers))
    return [answer for answer in answers if answer is not None]


def _translation(vocabulary: Vocabulary, found: Hypothesis) -> Translation:
    return Translation(vocabulary.target.decode(found.tokens), found.score, tuple(found.tokens), found.finished)


def read(network: Any, vocabulary: Vocabulary, texts: Sequence[str], truncate: bool = False) -> list[Row]:
    """Texts as tokens that the network has room for: one that is longer is refused, or cut where that is wanted."""
    check_texts(texts)
    room = network.limit - 1  # one place is the end's
    rows = [Row(tokens[:room], len(tokens)) for tokens in vocabulary.source.encode_many(list(texts))]
    if not truncate:
        for text, row in zip(texts, rows, strict=True):
            if row.cut:
                raise too_long(text, row.length, room)
    return rows


def generate(
    network: Any, vocabulary: Vocabulary, rows: list[list[int]], options: DecodeOptions
) -> list[list[Hypothesis]]:
    """Hypotheses for each row of source ids, best first. By default at most twice the source's length and 20 more."""
    source: Sequences = collate(rows, None, vocabulary).to(next(network.parameters()).device)
    limit = torch.tensor([options.max_new_tokens or 2 * len(row) + 20 for row in rows]).clamp(max=network.limit - 1)
    keys = [key_of(row) for row in rows] if options.temperature else ()
    found = search(network, source, vocabulary.target.begin, vocabulary.target.end, options, limit, keys=keys)
    if not all(found):
        raise UserError("the network's output is not finite: its weights are damaged, or its training diverged")
    return found
