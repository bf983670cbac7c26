"""Hidden words found again: a text with [MASK] in it, or however its tokenizer spells it. Devlin et al. 2019, 3.1."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.tasks.batching import encode_batches
from regard.tasks.embed.predict import BATCH, Read, Text, read_texts, together
from regard.tasks.fill.batches import MaskedBatch, MaskOptions, masked_rows, pair_budget, rows_per_epoch
from regard.tasks.fill.options import FillData
from regard.tasks.fill.sentences import SentenceDataset, prepare_sentences, prepare_stream
from regard.text.special_tokens import mask_token_of
from regard.text.vocabulary import Tokenizer

MOST = 5  # words that are told for a hidden one
ROWS, SEED = 32, 1  # of a batch that is scored, and of what is hidden in it: the same words each time


def hidden_in(
    data: FillData, part: str, tokenizer: Tokenizer, cache: Path, length: int, beside: Path
) -> TokenStream | SentenceDataset:
    """A part as running text, or where pairs are drawn as sentences."""
    if data.pair_task == "none":
        return prepare_stream(data, part, tokenizer, cache, beside)
    return prepare_sentences(data, part, tokenizer, cache, pair_budget(tokenizer, length), beside)


def some_rows(
    part: TokenStream | SentenceDataset, tokenizer: Tokenizer, options: MaskOptions, most: int
) -> Iterator[MaskedBatch]:
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
    network: MaskedLM,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    best: int = MOST,
) -> list[Filled]:
    """Each text with its hidden words. Logits are made for hidden places alone."""
    mask, rows = mask_token_of(tokenizer), read_texts(tokenizer, texts, network.max_positions, truncate)
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

    for numbers, places in encode_batches(network, [len(row.tokens) for row in rows], batch_size, read):
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
