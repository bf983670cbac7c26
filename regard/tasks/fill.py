"""Hidden words found again: a text with [MASK] in it, or however its tokenizer spells it. Devlin et al. 2019, 3.1."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.inputs.masking import mask_of, maskable
from regard.inputs.pretraining import Masked, MaskOptions, masked_rows, pair_room, rows_per_epoch
from regard.inputs.running import lessons
from regard.inputs.sentences import Sentences, prepare_sentences, prepare_stream
from regard.inputs.stream import Stream
from regard.inputs.text import Tokenizer, Vocabulary, train_tokenizer
from regard.models.heads import MaskedWords, Pretraining
from regard.recipe import DataOptions, Recipe
from regard.tasks.distil import Predicted
from regard.tasks.embed import BATCH, Read, Text, read_texts, together
from regard.tasks.fitting import masked
from regard.tasks.masked import guess, predict
from regard.tasks.parted import Parted
from regard.tasks.rows import each_room

MOST = 5  # words that are told for a hidden one
ROWS, SEED = 32, 1  # of a batch that is scored, and of what is hidden in it: the same words each time
SHOWN = 40  # tokens of a text that is shown between steps


class Fill(Parted[Stream | Sentences]):
    """What the training loop asks of finding hidden words again, alone or beside a pair's relation."""

    name, scores, teachable = "fill", ("loss", "accuracy"), True
    learn = staticmethod(lambda recipe: learn_vocabulary(recipe))
    fit = staticmethod(masked)

    def corpus(self, part: str) -> Stream | Sentences | None:
        if not getattr(self.recipe.data, part):
            return None
        return hidden_in(self.recipe.data, part, self.tokenizer, self.cache, self.length, Path(self.recipe.origin))

    def plan(self) -> None:
        """Rows of one length: blocks, or pairs as long as they may be."""
        data, size = self.recipe.data, self.options.batch_size or max(1, self.options.batch_tokens // self.length)
        self.masking = MaskOptions(self.length, size, self.recipe.seed, data.pairs, data.masked, data.whole_words)
        self.rows, *_ = [self._rows(name, part) for name, part in self.parts.items()]
        self.batches_per_epoch = -(-self.rows // size)

    def _rows(self, name: str, part: Stream | Sentences) -> int:
        """How many rows a part has; one too small for any is found out before the training, not at its first score."""
        try:
            return rows_per_epoch(part, self.tokenizer, self.masking)
        except UserError as error:
            raise UserError(f"data.{name}: {error}") from None

    def epoch(self, batches: int) -> float:
        return batches * self.masking.batch_size / self.rows

    def batches(self, start: int, rank: int, world: int) -> Iterator[Masked]:
        return masked_rows(self.training, self.tokenizer, self.masking, start, rank, world)

    def count(self, batch: Masked) -> int:
        return len(batch.words)

    def loss(self, network: Any, batch: Masked) -> Tensor:
        """Cross-entropy of each hidden word, summed; the mean over pairs counts as much as the mean over words."""
        found, smoothing = self.predict(network, batch), self.options.label_smoothing
        loss = F.cross_entropy(found.logits[0], batch.words, label_smoothing=smoothing, reduction="sum")
        if batch.labels is not None:
            loss = loss + batch.words_per_pair * F.cross_entropy(found.logits[1], batch.labels, reduction="sum")
        return self.taught(loss, found, batch)

    def predict(self, network: Any, batch: Masked) -> Predicted:
        return predict(network, batch)

    def validate(self, network: Any) -> dict[str, float]:
        """Of up to `eval_samples` rows of the validation part, the same words hidden each time."""
        if self.validation is None:
            return {}
        fixed = some_rows(self.validation, self.tokenizer, self.masking, self.options.eval_samples)
        return guess(network, fixed).figures()

    @torch.no_grad()
    def samples(self, network: Any, count: int) -> list[tuple[str, str, str]]:
        """The beginnings of texts with hidden words, as they were, and as the network fills them."""
        if self.validation is None:
            return []
        batch = next(some_rows(self.validation, self.tokenizer, self.masking, count))
        batch = batch.to(next(network.parameters()).device)
        found = [batch.text.tokens.clone() for _ in range(2)]
        found[0][batch.at], found[1][batch.at] = batch.words, predict(network, batch).logits[0].argmax(1)
        texts = zip(batch.text.tokens.tolist(), *(each.tolist() for each in found), strict=True)
        shown = [[tokens[:SHOWN] for tokens in row] for row in texts]
        decode = self.tokenizer.decode
        return [(self._open(hidden), decode(wanted), decode(told)) for hidden, wanted, told in shown]

    def _open(self, tokens: list[int]) -> str:
        """A text whose hidden places show."""
        mask, parts = mask_of(self.tokenizer), [list[int]()]
        for token in tokens:
            if token == mask:
                parts.append([])
            else:
                parts[-1].append(token)
        return f" {self.tokenizer.name(mask)} ".join(self.tokenizer.decode(part) for part in parts)


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """A tokenizer trained on the training part, with a token that hides others."""
    texts = lessons(recipe.data, "train", Path(recipe.origin))
    both = maskable(train_tokenizer(texts, recipe.tokenizer, ends=False))
    return Vocabulary(both, both)


def hidden_in(
    data: DataOptions, part: str, tokenizer: Tokenizer, cache: Path, length: int, beside: Path
) -> Stream | Sentences:
    """A part as running text, or where pairs are drawn as sentences."""
    if data.pairs == "none":
        return prepare_stream(data, part, tokenizer, cache, beside)
    return prepare_sentences(data, part, tokenizer, cache, pair_room(tokenizer, length), beside)


def some_rows(part: Stream | Sentences, tokenizer: Tokenizer, options: MaskOptions, most: int) -> Iterator[Masked]:
    """At most so many rows of a part, with the same words hidden whoever asks."""
    count = min(most, rows_per_epoch(part, tokenizer, options))
    batches = masked_rows(part, tokenizer, replace(options, batch_size=ROWS, seed=SEED))
    for done in range(0, count, ROWS):
        yield next(batches).rows(slice(count - done))


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Word:
    """What may stand at a hidden place, and how likely it does."""

    text: str
    score: float
    token: int


@dataclass(frozen=True)
class Filled:
    """A text with the likeliest word at each hidden place; `words` has the others, for each place the best first."""

    text: str
    words: tuple[tuple[Word, ...], ...]
    truncated: bool = False  # the text lost its end

    @property
    def score(self) -> float:
        """The probability of the least sure of its words."""
        return min(place[0].score for place in self.words)

    @property
    def others(self) -> tuple["Filled", ...]:
        return ()


@torch.inference_mode()
def fill(
    network: MaskedWords,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    best: int = MOST,
) -> list[Filled]:
    """Each text with its hidden words. Logits are made for hidden places alone."""
    mask, rows = mask_of(tokenizer), read_texts(tokenizer, texts, network.limit, truncate)
    for number, row in enumerate(rows, 1):
        if mask not in row.tokens:
            raise UserError(f"input {number} hides no word: write {tokenizer.name(mask)} in its place")
    answers: dict[int, Filled] = {}

    def read(numbers: list[int]) -> Iterator[tuple[list[float], list[int]]]:
        text = together([rows[number] for number in numbers]).to(next(network.parameters()).device)
        at = (text.tokens == mask) & text.real
        found: Any = network(text, at)
        logits = found.words if isinstance(network, Pretraining) else found
        chances = logits[:, : tokenizer.size].float().softmax(-1)
        chances[:, [*tokenizer.special.values()]] = 0.0  # a word is asked for
        likely = chances.topk(min(best, tokenizer.size))
        return zip(likely.values.tolist(), likely.indices.tolist(), strict=True)

    for numbers, places in each_room(network, [len(row.tokens) for row in rows], batch_size, read):
        for number in numbers:
            hidden = rows[number].tokens.count(mask)
            answers[number] = _filled(tokenizer, rows[number], mask, [next(places) for _ in range(hidden)])
        progress(len(numbers))
    return [answers[number] for number in range(len(rows))]


def _filled(tokenizer: Tokenizer, row: Read, mask: int, found: list[tuple[list[float], list[int]]]) -> Filled:
    places = tuple(
        tuple(
            Word(tokenizer.pieces([token])[0].strip(), score, token)
            for score, token in zip(scores, tokens, strict=True)
        )
        for scores, tokens in found
    )
    likeliest = iter(places)
    tokens = [next(likeliest)[0].token if token == mask else token for token in row.tokens]
    return Filled(tokenizer.decode(tokens), places, row.cut)
