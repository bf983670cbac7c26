"""Batches of texts with hidden words, alone or in pairs; a pure function of (seed, batch number).

    none     blocks of running text, documents one after another
             Liu et al. 2019, FULL-SENTENCES
    next     two runs of sentences; the second follows the first, or half the time is another document's (label 1)
             Devlin et al. 2019, task #2 and appendix A.2
    order    two runs that follow each other, half the time turned round (label 1)
             Lan et al. 2020, section 3.1

    epoch e:   a Feistel permutation of the chunks (blocks), keyed by (seed, e)
    batch k:   chunks k·size … (k + 1)·size of the endless stream of epochs; what is drawn in it comes from (seed, k)
    rank r of world takes batches k·world + r.

One pair in ten is shorter, of any length from two tokens on. A pair that is too long loses tokens of its longer text,
at either end. What a pair does not use of its chunk comes in another epoch.

Shapes: batch, length.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.packing import PackOptions, blocks_per_epoch, packed
from regard.data.sampler import ROUNDS, permute
from regard.data.token_stream import Stream
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import select_ragged, select_rows, to_device
from regard.tasks.fill.sentences import Sentences
from regard.text.masking import Masker, masker_of
from regard.text.special_tokens import padded, pair_frame, special_tokens_of
from regard.text.vocabulary import Tokenizer

SHORTER = 0.1  # of the pairs

ANOTHER = 0.5  # of the second texts are another document's, or stand before the first

TRIES = 8  # of finding another text as long


class MaskedBatch(NamedTuple):
    """Texts with hidden words, what these were, and what the second text is to the first."""

    text: TokenBatch
    at: Tensor  # (batch, length): True where a token is to be told
    words: Tensor  # (hidden): what stood there, row by row
    labels: Tensor | None  # (batch): 0 where the second text follows the first
    index: Tensor  # (batch): the numbers of chunks or blocks in their epoch
    words_per_pair: float  # of the whole batch, also where this is a part of it

    def to(self, device: torch.device | str) -> "MaskedBatch":
        return to_device(self, device)

    def rows(self, some: slice) -> "MaskedBatch":
        """Some of its rows."""
        labels, words = None if self.labels is None else self.labels[some], select_ragged(self.at, self.words, some)
        return self._replace(
            text=select_rows(self.text, some), at=self.at[some], words=words, labels=labels, index=self.index[some]
        )


@dataclass(frozen=True)
class MaskOptions:
    """How long a row is, how many a batch has, what decides what is drawn, and what is hidden."""

    length: int  # with what the tokenizer puts round texts
    batch_size: int
    seed: int = 0
    pairs: Literal["none", "next", "order"] = "none"
    share: float = 0.15
    whole_words: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size = {self.batch_size}: must be at least 1")


def rows_per_epoch(part: Stream | Sentences, tokenizer: Tokenizer, options: MaskOptions) -> int:
    """How many rows a part has: a chunk or a block each; one that has not enough for any is refused."""
    if isinstance(part, Stream):
        return blocks_per_epoch(part, block_size(tokenizer, options))
    if options.pairs == "next" and part.documents < 2:
        raise UserError("data.pairs = 'next' takes the other text from another document, but there is only one")
    return len(part)


def masked_rows(
    part: Stream | Sentences, tokenizer: Tokenizer, options: MaskOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[MaskedBatch]:
    """Rows with hidden words without end, from the rank's own number `start`: pairs or blocks, as was prepared."""
    if isinstance(part, Sentences):
        return masked_pairs(part, tokenizer, options, start, rank, world)
    return masked_blocks(part, tokenizer, options, start, rank, world)


def block_size(tokenizer: Tokenizer, options: MaskOptions) -> PackOptions:
    """How running text is packed for these rows."""
    room = options.length - special_tokens_of(tokenizer, 1).size
    if room < 2:
        raise UserError(f"data.max_length = {options.length} leaves room for {room} tokens of a text: give more")
    return PackOptions(room - 1, options.batch_size, options.seed)


def masked_blocks(
    stream: Stream, tokenizer: Tokenizer, options: MaskOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[MaskedBatch]:
    """BlockBatch with hidden words without end, from the rank's own number `start`."""
    frame, masker, number = special_tokens_of(tokenizer, 1), masker_of(tokenizer), start * world + rank
    for blocks in packed(stream, block_size(tokenizer, options), start, rank, world):
        rows = [frame.place(row) for row in blocks.tokens.numpy()]
        yield _masked(padded(rows, 0), masker, options, _chance(options, number), None, blocks.index)
        number += world


def masked_pairs(
    sentences: Sentences, tokenizer: Tokenizer, options: MaskOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[MaskedBatch]:
    """Pairs with hidden words without end, from the rank's own number `start`."""
    frame, masker, number = pair_frame(tokenizer), masker_of(tokenizer), start * world + rank
    padding = max(tokenizer.pad, 0)
    rows_per_epoch(sentences, tokenizer, options)
    while True:
        chance, index = _chance(options, number), chunks_of(sentences, options, number)
        pairs = [draw_pair(sentences, chunk, options, chance) for chunk in index.tolist()]
        text = padded([frame.place(pair.first, pair.second) for pair in pairs], padding)
        labels = torch.tensor([pair.label for pair in pairs])
        yield _masked(text, masker, options, chance, labels, torch.from_numpy(index))
        number += world


def pair_room(tokenizer: Tokenizer, length: int) -> int:
    """How many tokens two texts may have in rows of this length."""
    return length - pair_frame(tokenizer).size


def chunks_of(sentences: Sentences, options: MaskOptions, number: int) -> np.ndarray:
    """The chunks of a batch."""
    places, count = np.arange(number * options.batch_size, (number + 1) * options.batch_size), len(sentences)
    found = np.empty(len(places), np.int64)
    for epoch in np.unique(places // count).tolist():
        here = places // count == epoch
        keys = np.random.SeedSequence((options.seed % 2**64, epoch)).generate_state(ROUNDS, np.uint64)
        found[here] = permute(places[here] % count, count, keys)
    return found


def _chance(options: MaskOptions, number: int) -> np.random.Generator:
    return np.random.default_rng((options.seed % 2**64, number, 1))


def _masked(
    text: TokenBatch,
    masker: Masker,
    options: MaskOptions,
    chance: np.random.Generator,
    labels: Tensor | None,
    index: Tensor,
) -> MaskedBatch:
    tokens, real = text.tokens.numpy(), text.real.numpy()
    hidden, at = masker.hide(tokens, real, chance, options.share, options.whole_words)
    shown = text._replace(tokens=torch.from_numpy(hidden))
    words = torch.from_numpy(tokens[at])
    return MaskedBatch(shown, torch.from_numpy(at), words, labels, index, len(words) / max(1, len(index)))


# ── pairs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Pair(NamedTuple):
    """Two texts as tokens; `label` is 1 where the second does not follow the first."""

    first: np.ndarray
    second: np.ndarray
    label: int


def draw_pair(sentences: Sentences, chunk: int, options: MaskOptions, chance: np.random.Generator) -> Pair:
    """Two texts of a chunk, or of it and another document's."""
    document, begin, end = sentences.chunk(chunk)
    room = sentences.room
    size = int(chance.integers(2, room + 1)) if chance.random() < SHORTER else room
    rows, _ = _until(map(sentences.tokens.__getitem__, range(begin, end)), size, least=2)
    middle = int(chance.integers(1, len(rows)))
    first, second = np.concatenate(rows[:middle]), np.concatenate(rows[middle:])
    other = chance.random() < ANOTHER
    if options.pairs == "order":
        first, second = (second, first) if other else (first, second)
    elif other:
        second = _elsewhere(sentences, document, len(second), size - len(first), chance)
    return Pair(*_shortened(first, second, size, chance), int(other))


class Stretch(NamedTuple):
    """Sentences one after another, and whether there were enough of them."""

    rows: list[np.ndarray]
    enough: bool


def _until(rows: Iterable[np.ndarray], size: int, least: int = 1, near: bool = False) -> Stretch:
    """Sentences until they have so many tokens, or as `near` to it as whole ones come."""
    found, total = list[np.ndarray](), 0
    for row in rows:
        if len(found) >= least and total + (len(row) // 2 if near else 0) >= size:
            return Stretch(found, True)
        found.append(row)
        total += len(row)
    return Stretch(found, total >= size)


def _elsewhere(sentences: Sentences, document: int, like: int, room: int, chance: np.random.Generator) -> np.ndarray:
    """Sentences of another document, from any on, which their length does not tell from those that follow.

    Where these (`like` tokens) fill the room, so do they; else they come as near as whole sentences do. Where a
    document ends too soon another is tried.
    """
    tried: list[Stretch] = []
    while not tried or (not tried[-1].enough and len(tried) < TRIES):
        number = int(chance.integers(len(sentences)))
        other, begin, end = sentences.chunk(number)
        if other != document:
            rest = _onwards(sentences, number, int(chance.integers(begin, end)))
            tried.append(_until(rest, min(like, room), near=like < room))
    longest = max(tried, key=lambda each: (each.enough, sum(map(len, each.rows))))
    return np.concatenate(longest.rows)


def _onwards(sentences: Sentences, number: int, first: int) -> Iterator[np.ndarray]:
    """A document's sentences from one of a chunk's on, through the chunks behind it."""
    document = sentences.chunk(number)[0]
    for chunk in itertools.takewhile(
        lambda each: each[0] == document, map(sentences.chunk, range(number, len(sentences)))
    ):
        yield from (sentences.tokens[place] for place in range(max(first, chunk[1]), chunk[2]))
        first = chunk[2]


def _shortened(
    first: np.ndarray, second: np.ndarray, size: int, chance: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """At most so many tokens of both: the longer loses one after the other, at its head or its end."""
    ends = [[0, len(first)], [0, len(second)]]
    for head in chance.random(max(0, len(first) + len(second) - size)) < 0.5:
        longer = ends[0] if ends[0][1] - ends[0][0] > ends[1][1] - ends[1][0] else ends[1]
        longer[0] += int(head)
        longer[1] -= int(not head)
    return first[slice(*ends[0])], second[slice(*ends[1])]
