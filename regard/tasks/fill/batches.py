"""Batches of texts with masked tokens, alone or in pairs; a pure function of (seed, batch index).

    none     blocks of text, documents one after another
             Liu et al. 2019, FULL-SENTENCES
    nsp      two runs of sentences; the second follows the first, or half the time is from another document (label 1)
             next sentence prediction: Devlin et al. 2019, task #2 and appendix A.2
    sop      two runs that follow each other, half the time swapped (label 1)
             sentence order prediction: Lan et al. 2020, section 3.1

    epoch e:   a Feistel permutation of the chunks (blocks), keyed by (seed, e)
    batch k:   chunks k·size … (k + 1)·size of the endless stream of epochs; its random numbers come from (seed, k)
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

from regard.data.packing import BlockBatch, PackOptions, blocks_per_epoch, packed
from regard.data.sampler import ROUNDS, permute
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import select_ragged, select_rows, to_device
from regard.tasks.fill.masking import masker_of
from regard.tasks.fill.sentences import SentenceDataset
from regard.text.special_tokens import padded, pair_frame, special_tokens_of
from regard.text.tokenizer import Tokenizer

SHORT_SHARE = 0.1  # of the pairs

NEGATIVE_SHARE = 0.5  # of the second texts are another document's, or precede the first

TRIES = 8  # of finding another text that is long enough


class MaskedBatch(NamedTuple):
    """Texts with masked tokens, their original tokens, and the relation of the second text to the first."""

    text: TokenBatch
    at: Tensor  # (batch, length): True where a token is to be predicted
    targets: Tensor  # (masked): the original tokens, row by row
    labels: Tensor | None  # (batch): 0 if the second text follows the first
    indices: Tensor  # (batch): the indices of chunks or blocks in their epoch
    targets_per_pair: float  # of the full batch, also in a slice of it

    def to(self, device: torch.device | str) -> "MaskedBatch":
        return to_device(self, device)

    def rows(self, chosen: slice) -> "MaskedBatch":
        """A slice of its rows."""
        return self._replace(
            text=select_rows(self.text, chosen),
            at=self.at[chosen],
            targets=select_ragged(self.at, self.targets, chosen),
            labels=None if self.labels is None else self.labels[chosen],
            indices=self.indices[chosen],
        )


@dataclass(frozen=True)
class MaskOptions:
    """The length of a row, the rows of a batch, the seed, and what is masked."""

    length: int  # with special tokens
    batch_size: int
    seed: int = 0
    pair_task: Literal["none", "nsp", "sop"] = "none"
    share: float = 0.15
    whole_word_mask: bool = False


def rows_per_epoch(dataset: TokenStream | SentenceDataset, tokenizer: Tokenizer, options: MaskOptions) -> int:
    """How many rows a split has, one for each chunk or block; a split that is too small is an error."""
    if isinstance(dataset, TokenStream):
        return blocks_per_epoch(dataset, block_size(tokenizer, options))
    if options.pair_task == "nsp" and dataset.documents < 2:
        raise UserError("data.pair_task = 'nsp' takes the other text from another document, but there is only one")
    return len(dataset)


def masked_rows(
    dataset: TokenStream | SentenceDataset,
    tokenizer: Tokenizer,
    options: MaskOptions,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[MaskedBatch]:
    """Endless batches of blocks or pairs with masked tokens, from batch `start` of this rank."""
    masker = masker_of(tokenizer)
    rows_per_epoch(dataset, tokenizer, options)
    frame = special_tokens_of(tokenizer, 1) if isinstance(dataset, TokenStream) else pair_frame(tokenizer)
    blocks: Iterator[BlockBatch] = iter(())
    if isinstance(dataset, TokenStream):
        blocks = packed(dataset, block_size(tokenizer, options), start, rank, world)
    for batch in itertools.count(start * world + rank, world):
        rng = np.random.default_rng((options.seed % 2**64, batch, 1))
        labels = None
        if isinstance(dataset, SentenceDataset):
            index = torch.from_numpy(chunks_of(dataset, options, batch))
            pairs = [draw_pair(dataset, chunk, options, rng) for chunk in index.tolist()]
            rows = [frame.wrap(pair.first, pair.second) for pair in pairs]
            labels = torch.tensor([pair.label for pair in pairs])
        else:
            tokens, index = next(blocks)
            rows = [frame.wrap(row) for row in tokens.numpy()]
        text = padded(rows, max(tokenizer.pad, 0))
        tokens = text.tokens.numpy()
        masked, at = masker.mask_tokens(tokens, text.real.numpy(), rng, options.share, options.whole_word_mask)
        targets = torch.from_numpy(tokens[at])
        text = text._replace(tokens=torch.from_numpy(masked))
        yield MaskedBatch(text, torch.from_numpy(at), targets, labels, index, len(targets) / max(1, len(index)))


def block_size(tokenizer: Tokenizer, options: MaskOptions) -> PackOptions:
    """How text without pairs is packed for these rows."""
    text_tokens = options.length - special_tokens_of(tokenizer, 1).size
    if text_tokens < 2:
        raise UserError(f"data.max_length = {options.length} leaves {text_tokens} tokens for a text: increase it")
    return PackOptions(text_tokens - 1, options.batch_size, options.seed)


def pair_budget(tokenizer: Tokenizer, length: int) -> int:
    """How many tokens two texts may have in rows of this length."""
    return length - pair_frame(tokenizer).size


def chunks_of(sentences: SentenceDataset, options: MaskOptions, batch: int) -> np.ndarray:
    """The chunks of a batch."""
    positions = np.arange(batch * options.batch_size, (batch + 1) * options.batch_size)
    count = len(sentences)
    chunks = np.empty(len(positions), np.int64)
    for epoch in np.unique(positions // count).tolist():
        here = positions // count == epoch
        keys = np.random.SeedSequence((options.seed % 2**64, epoch)).generate_state(ROUNDS, np.uint64)
        chunks[here] = permute(positions[here] % count, count, keys)
    return chunks


# ── pairs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Pair(NamedTuple):
    """Two texts as tokens; `label` is 1 if the second does not follow the first."""

    first: np.ndarray
    second: np.ndarray
    label: int


def draw_pair(sentences: SentenceDataset, chunk: int, options: MaskOptions, rng: np.random.Generator) -> Pair:
    """Two texts of a chunk, or one of it and one of another document."""
    document, begin, end = sentences.chunk(chunk)
    max_tokens = sentences.max_tokens
    size = int(rng.integers(2, max_tokens + 1)) if rng.random() < SHORT_SHARE else max_tokens
    rows, _ = _take(map(sentences.tokens.__getitem__, range(begin, end)), size, minimum=2)
    middle = int(rng.integers(1, len(rows)))
    first = np.concatenate(rows[:middle])
    second = np.concatenate(rows[middle:])
    negative = rng.random() < NEGATIVE_SHARE
    if negative and options.pair_task == "sop":
        first, second = second, first
    elif negative:
        second = _from_another_document(sentences, document, len(second), size - len(first), rng)
    return Pair(*_truncate_pair(first, second, size, rng), int(negative))


class SentenceRun(NamedTuple):
    """Consecutive sentences, and whether they are long enough."""

    rows: list[np.ndarray]
    enough: bool


def _take(rows: Iterable[np.ndarray], size: int, minimum: int = 1, nearest: bool = False) -> SentenceRun:
    """Sentences until they have `size` tokens, or with `nearest` as many as come nearest to it."""
    taken: list[np.ndarray] = []
    total = 0
    for row in rows:
        if len(taken) >= minimum and total + (len(row) // 2 if nearest else 0) >= size:
            return SentenceRun(taken, True)
        taken.append(row)
        total += len(row)
    return SentenceRun(taken, total >= size)


def _from_another_document(
    sentences: SentenceDataset, document: int, length: int, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Sentences of another document, from a random one, whose length does not distinguish them from the true ones.

    If the true ones (`length` tokens) fill the budget, so do these; else their length is as near as complete sentences
    allow. If a document is too short, another is tried.
    """
    tried: list[SentenceRun] = []
    while not tried or (not tried[-1].enough and len(tried) < TRIES):
        chunk = int(rng.integers(len(sentences)))
        other, begin, end = sentences.chunk(chunk)
        if other != document:
            rest = _following(sentences, chunk, int(rng.integers(begin, end)))
            tried.append(_take(rest, min(length, budget), nearest=length < budget))
    best = max(tried, key=lambda run: (run.enough, sum(map(len, run.rows))))
    return np.concatenate(best.rows)


def _following(sentences: SentenceDataset, chunk: int, first: int) -> Iterator[np.ndarray]:
    """A document's sentences from `first`, which is in this chunk, through the chunks after it."""
    document, _, _ = sentences.chunk(chunk)
    following = map(sentences.chunk, range(chunk, len(sentences)))
    for _, _, end in itertools.takewhile(lambda other: other[0] == document, following):
        yield from map(sentences.tokens.__getitem__, range(first, end))
        first = end


def _truncate_pair(
    first: np.ndarray, second: np.ndarray, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """At most `size` tokens of both: the longer one loses tokens one by one, at its start or its end."""
    spans = [[0, len(first)], [0, len(second)]]
    for at_start in rng.random(max(0, len(first) + len(second) - size)) < 0.5:
        longer = spans[0] if spans[0][1] - spans[0][0] > spans[1][1] - spans[1][0] else spans[1]
        longer[0] += int(at_start)
        longer[1] -= int(not at_start)
    return first[slice(*spans[0])], second[slice(*spans[1])]
