"""Hidden words found again: a text with [MASK] in it, or however its tokenizer spells it. Devlin et al. 2019, 3.1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import UserError
from regard.inputs.masking import mask_of
from regard.inputs.text import Tokenizer
from regard.models.heads import MaskedWords, Pretraining
from regard.tasks.embed import BATCH, Read, Text, read_texts, together
from regard.tasks.rows import by_length

MOST = 5  # words that are told for a hidden one


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
    words: int = MOST,
) -> list[Filled]:
    """Each text with its hidden words. Logits are made for hidden places alone."""
    mask, rows = mask_of(tokenizer), read_texts(tokenizer, texts, network.limit, truncate, network.config.segments)
    for number, row in enumerate(rows, 1):
        if mask not in row.tokens:
            raise UserError(f"input {number} hides no word: write {tokenizer.name(mask)} in its place")
    answers: dict[int, Filled] = {}
    for numbers in by_length([len(row.tokens) for row in rows], batch_size):
        text = together([rows[number] for number in numbers]).to(next(network.parameters()).device)
        at = (text.tokens == mask) & text.real
        found: Any = network(text, at)
        logits = found.words if isinstance(network, Pretraining) else found
        best = logits[:, : tokenizer.size].float().softmax(-1).topk(min(words, tokenizer.size))
        places = zip(best.values.tolist(), best.indices.tolist(), strict=True)
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
