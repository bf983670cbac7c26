"""Translation, and whatever else turns one text into another: its data, loss, score and answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.config.recipe import DecodeOptions
from regard.decoding.sampling import key_of
from regard.decoding.search import Hypothesis, search
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.tasks.batching import Row, by_length, check_texts, too_long
from regard.tasks.translate.alignment import align, look
from regard.tasks.translate.dataset import collate
from regard.text.vocabulary import Vocabulary


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
            answers[number] = replace(best, truncated=rows[number].truncated, alignment=seen, others=tuple(others))
        progress(len(numbers))
    return [answer for answer in answers if answer is not None]


def _translation(vocabulary: Vocabulary, found: Hypothesis) -> Translation:
    return Translation(vocabulary.target.decode(found.tokens), found.score, tuple(found.tokens), found.finished)


def read(network: Any, vocabulary: Vocabulary, texts: Sequence[str], truncate: bool = False) -> list[Row]:
    """Texts as tokens that the network has room for: one that is longer is refused, or cut where that is wanted."""
    check_texts(texts)
    room = network.max_positions - 1  # one place is the end's
    rows = [Row(tokens[:room], len(tokens)) for tokens in vocabulary.source.encode_many(list(texts))]
    if not truncate:
        for text, row in zip(texts, rows, strict=True):
            if row.truncated:
                raise too_long(text, row.length, room)
    return rows


def generate(
    network: Any, vocabulary: Vocabulary, rows: list[list[int]], options: DecodeOptions
) -> list[list[Hypothesis]]:
    """Hypotheses for each row of source ids, best first. By default at most twice the source's length and 20 more."""
    source: TokenBatch = collate(rows, None, vocabulary).to(next(network.parameters()).device)
    limit = torch.tensor([options.max_new_tokens or 2 * len(row) + 20 for row in rows]).clamp(
        max=network.max_positions - 1
    )
    keys = [key_of(row) for row in rows] if options.temperature else ()
    found = search(network, source, vocabulary.target.begin, vocabulary.target.end, options, limit, keys=keys)
    if not all(found):
        raise UserError("the network's output is not finite: its weights are damaged, or its training diverged")
    return found
