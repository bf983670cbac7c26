"""Batches of source and target sequences."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import torch
from torch import Tensor

from regard.data.pairs import Corpus
from regard.data.sampler import BatchOptions, shares
from regard.errors import UserError
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.layers.pytree import to_device
from regard.text.tokenizer import MISSING, ROLES, Tokenizer
from regard.text.vocabulary import Vocabulary


class Batch(NamedTuple):
    """Source rows end with </s>; target rows begin with <s> and end with </s>."""

    source: TokenBatch
    target: TokenBatch
    index: Tensor  # (batch): the samples' numbers in the corpus

    def to(self, device: torch.device | str) -> "Batch":
        return to_device(self, device)


@overload
def collate(sources: Sequence[Ids], targets: None, vocabulary: Vocabulary) -> TokenBatch: ...


@overload
def collate(
    sources: Sequence[Ids], targets: Sequence[Ids], vocabulary: Vocabulary, index: Sequence[int] | None = None
) -> Batch: ...


def collate(
    sources: Sequence[Ids],
    targets: Sequence[Ids] | None,
    vocabulary: Vocabulary,
    index: Sequence[int] | None = None,
) -> Batch | TokenBatch:
    """Source ids + end; target begin + ids + end; without targets the sources alone."""
    source, target = vocabulary.source, vocabulary.target
    sequences = pad(sources, max(source.pad, 0), last=[_needed(source, "end")])
    if targets is None:
        return sequences
    numbers = torch.tensor(list(range(len(sources)) if index is None else index), dtype=torch.int64)
    first, last = _needed(target, "begin"), _needed(target, "end")
    return Batch(sequences, pad(targets, max(target.pad, 0), first=[first], last=[last]), numbers)


def _needed(tokenizer: Tokenizer, role: str) -> int:
    token = tokenizer.ids[role]
    if token == MISSING:
        key, spellings = ROLES[role]
        raise UserError(
            f"the tokenizer has no token for '{role}', which pairs of texts need (looked for {', '.join(spellings)}); "
            f"name it as {key} in its tokenizer_config.json"
        )
    return token


def stream(
    corpus: Corpus, vocabulary: Vocabulary, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """Batches without end, from the rank's own number `start`: its k-th is batch k·world + rank of all."""
    for index in shares(corpus, options, start, rank, world):
        yield collate([corpus.source(i) for i in index], [corpus.target(i) for i in index], vocabulary, index)
