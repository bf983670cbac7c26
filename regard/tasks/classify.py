"""Telling texts apart by labels: its data, loss, score and answer. Radford et al. 2018, section 3.2."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.trace import Trace, record
from regard.errors import UserError
from regard.inputs.arrays import Corpus
from regard.inputs.batch import pad
from regard.inputs.labels import (
    BETWEEN,
    Labelled,
    Sides,
    Texts,
    collate,
    enclosed,
    prepare,
    read,
    split_pair,
    stream,
)
from regard.inputs.masking import maskable
from regard.inputs.targets import targets_of, told_label
from regard.inputs.text import Tokenizer, Vocabulary, train_tokenizer
from regard.models import FAMILIES, Family
from regard.models.classifier import Classifier
from regard.recipe import Recipe
from regard.tasks.distil import Predicted
from regard.tasks.fitting import labelled
from regard.tasks.kinds import kind_of, weigh
from regard.tasks.parted import Parted
from regard.tasks.rows import Row, by_length, check_texts, each_room, shown, too_long
from regard.tasks.told import LIKELY, Told, answer_of, told_by

BATCH = 64  # texts that are read at once where nobody says how many
Text = str | tuple[str, ...]


class Classify(Parted[Corpus]):
    """What the training loop asks of telling texts apart."""

    name, unit, teachable = "classify", "texts", True
    learn = staticmethod(lambda recipe: learn_vocabulary(recipe))
    fit = staticmethod(labelled)

    @staticmethod
    def able(family: Family) -> bool:
        return not family.translates

    def know(self, network: Any) -> None:
        self.kind = kind_of(network, self.options)
        self.scores = self.kind.scores
        self.targets = targets_of(network.kind, network.labels)
        self.sides = Sides(Texts(self.tokenizer, bool(self.recipe.data.text2)), self.targets)
        self.tells = network.labels if network.kind != "number" else ()

    def open(self) -> None:
        super().open()
        if self.options.class_weights == "balanced":
            weigh(self.kind, self.training, self.targets)

    @property
    def reports(self) -> dict[str, str]:
        """What became of each part's samples, in words; of train also its labels."""
        return super().reports | ({"labels": ", ".join(self.tells)} if self.tells else {})

    def corpus(self, part: str) -> Corpus | None:
        if not getattr(self.recipe.data, part):
            return None
        return prepare(self.recipe.data, part, self.sides, self.cache, self.length, Path(self.recipe.origin))

    def batches(self, start: int, rank: int, world: int) -> Iterator[Labelled]:
        return stream(self.training, self.sides, self.batching, start, rank, world)

    def count(self, batch: Labelled) -> int:
        return len(batch.labels)

    def loss(self, network: Any, batch: Labelled) -> Tensor:
        """The loss of each label, and `auxiliary` times the mean of its text's tokens (equation 5), summed."""
        found = self.predict(network, batch)
        loss = self.kind.loss(found.logits[0], batch.labels)
        if self.options.auxiliary:
            loss = loss + self.options.auxiliary * _text_loss(network, found.states, batch)
        return self.taught(loss, found, batch)

    def predict(self, network: Any, batch: Labelled) -> Predicted:
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
        return self.kind.figures(logits, wanted)

    def samples(self, network: Any, count: int) -> list[tuple[str, str, str]]:
        if self.validation is None:
            return []
        found = [self.validation.text(number) for number in range(min(count, len(self.validation)))]
        texts = [split_pair(each.source, self.sides.source.paired) for each in found]
        answers = classify(network, self.sides.source, texts)
        wanted = [told_label(each.target, network.kind) for each in found]
        return list(zip(map(shown, texts), wanted, map(str, answers), strict=True))


def _text_loss(network: Classifier, states: Tensor, batch: Labelled) -> Tensor:
    """The mean loss of each text's tokens after the first, summed over the texts."""
    real = batch.text.real[:, 1:]
    logits = network.body.output(states[:, :-1][real]).float()
    losses = F.cross_entropy(logits, batch.text.tokens[:, 1:][real], reduction="none")
    counts = (batch.text.lengths - 1).clamp(min=1)[:, None].expand(real.shape)[real]
    return (losses / counts).sum()


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """A tokenizer trained on the texts of the training part; for an encoder one that also marks their beginning."""
    records = read(recipe.data, "train", Path(recipe.origin))
    texts = (text for record in records for text in record.source.split(BETWEEN))
    family = FAMILIES.get(recipe.model.get("family", ""))
    around = maskable if family and family.encodes else enclosed
    both = around(train_tokenizer(texts, recipe.tokenizer, ends=False))
    return Vocabulary(both, both)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def classify(
    network: Classifier,
    texts: Texts,
    inputs: Sequence[Text],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    threshold: float = LIKELY,
) -> list[Any]:
    """What each text, or pair of texts, is called: a Label, Several or a Number; read in batches of like length."""
    rows = read_rows(network, texts, inputs, truncate)
    texts = replace(texts, paired=texts.paired or any(not isinstance(each, str) for each in inputs))
    answers: dict[int, Told] = {}

    def read(numbers: list[int]) -> list[Any]:
        text = texts.sequences([rows[number].tokens for number in numbers]).to(next(network.parameters()).device)
        return network.chances(network(text).float()).tolist()

    for numbers, chances in each_room(network, [len(row.tokens) for row in rows], batch_size, read):
        for number, each in zip(numbers, chances, strict=True):
            answers[number] = answer_of(network, each, rows[number].cut, threshold)
        progress(len(numbers))
    return [answers[number] for number in range(len(rows))]


def read_rows(network: Any, texts: Texts, inputs: Sequence[Text], truncate: bool = False) -> list[Row]:
    """Texts as tokens that the network has room for: a longer one is refused, or loses its end."""
    given = [apart(each, texts.paired) for each in inputs]
    for number, each in enumerate(given, 1):
        if texts.paired and (not isinstance(each, tuple) or len(each) != 2):
            raise UserError(f"input {number} should be two texts, a tab between: this model was trained on pairs")
        if network.paired is False and isinstance(each, tuple):
            raise UserError(f"input {number} is two texts: this model was trained on single ones")
    check_texts(given, pairs=True)
    for number, each in enumerate(given, 1):
        if not "".join(each).strip():
            raise UserError(f"input {number} is empty: there is nothing to label")
    rows, tail = texts.rows(given), _tail(texts)
    for each, row in zip(given, rows, strict=True):
        if len(row) > network.limit and not truncate:
            raise too_long(each, len(row), network.limit)
    room = network.limit - len(tail)
    return [Row(row if len(row) <= network.limit else row[:room] + tail, len(row)) for row in rows]


@torch.no_grad()
def look_over(network: Classifier, tokenizer: Tokenizer, row: list[int], prove: bool = False) -> Trace:
    """What is attended to while a text is read to tell its label."""
    text, pieces = pad([row], 0).to(next(network.parameters()).device), tokenizer.pieces(row)
    with record(prove) as recorder:
        found = network(text)
    return Trace(recorder, target=pieces, output=pieces, answer=told_by(network, found).text)


def _tail(texts: Texts) -> list[int]:
    """What the tokenizer puts behind a text, which a cut leaves there."""
    end = texts.tokenizer.end
    return [end] if texts.rows(["a"])[0][-1:] == [end] else []


def apart(text: Any, paired: bool | None) -> Any:
    """One text, or two: a pair as it is given, or a line with a tab between where pairs are, or may be (None), read."""
    if isinstance(text, str):
        return tuple(text.split("\t", 1)) if paired or (paired is None and "\t" in text) else text
    return tuple(text) if isinstance(text, list | tuple) else text
