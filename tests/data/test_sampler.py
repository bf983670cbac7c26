"""Batches: every sample once an epoch, bounds hold, batch k is a pure function of (seed, k), ranks share the stream."""

from itertools import islice, pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.recipe import TokenizerOptions
from regard.data.sampler import BatchOptions, batches_per_epoch, epoch_shares, epochs, permute
from regard.errors import UserError
from regard.tasks.seq2seq import Seq2SeqBatch
from regard.tasks.translate.dataset import collate, collate_samples, collate_sources
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

TOKENIZER = train_tokenizer(["a b c"], TokenizerOptions(kind="words", min_frequency=1))
VOCABULARY = Vocabulary(TOKENIZER, TOKENIZER)


class Ragged:
    """A corpus in memory whose sample i is made of the number i."""

    def __init__(self, count: int, longest: int = 41, seed: int = 5):
        random = np.random.default_rng(seed)
        self.source_lengths = random.integers(1, longest + 1, count, dtype=np.int32)
        self.target_lengths = random.integers(1, longest + 1, count, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def source(self, index: int) -> np.ndarray:
        return np.full(self.source_lengths[index], 4 + index, np.uint16)

    def target(self, index: int) -> np.ndarray:
        return np.full(self.target_lengths[index], 5 + index, np.uint16)


def corpus(count: int, **fields: int) -> Any:
    return cast(Any, Ragged(count, **fields))


def take(
    count: int, dataset: Any, vocabulary: Vocabulary, options: BatchOptions, *share: int, **keywords: int
) -> list[Seq2SeqBatch]:
    batches = epoch_shares(dataset, options, *share, **keywords)
    return [collate_samples(dataset, indices, vocabulary) for _, indices in islice(batches, count)]


def same(first: list[Seq2SeqBatch], second: list[Seq2SeqBatch]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(
        torch.equal(a.indices, b.indices)
        and torch.equal(a.source.tokens, b.source.tokens)
        and torch.equal(a.target.tokens, b.target.tokens)
        for a, b in pairs
    )


SIZES = [{"batch_tokens": 307}, {"batch_size": 7}]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1))
def test_the_permutation_is_one(size: int, seed: int) -> None:
    keys = np.random.SeedSequence(seed).generate_state(6, np.uint64)
    image = permute(np.arange(size), size, keys)
    assert np.array_equal(np.sort(image), np.arange(size))
    window = np.arange(size // 3, size // 2)
    assert np.array_equal(permute(window, size, keys), image[size // 3 : size // 2])


def test_the_permutation_is_statistically_random() -> None:
    """Neighbours end up a third of the size apart on average, as in a uniformly drawn permutation."""
    size = 100_003
    image = permute(np.arange(size), size, np.random.SeedSequence(3).generate_state(6, np.uint64))
    assert abs(np.abs(np.diff(image)).mean() / size - 1 / 3) < 0.01
    assert abs(np.corrcoef(np.arange(size), image)[0, 1]) < 0.02


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("count", "window"), [(1, 8192), (101, 13), (997, 128), (256, 64), (500, 8192)])
def test_every_sample_once_an_epoch_and_bounds_hold(size: dict, count: int, window: int) -> None:
    data, options = corpus(count), BatchOptions(**size, window=window)
    number = batches_per_epoch(data, options)
    batches = take(number, data, VOCABULARY, options)
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(count))
    for batch in batches:
        rows = len(batch.indices)
        width = max(batch.source.tokens.shape[1], batch.target.tokens.shape[1] - 1)
        if options.batch_size:
            assert rows <= options.batch_size
        else:
            assert rows * width <= options.batch_tokens
    assert epochs(data, options, number) == 1.0


def test_token_batches_are_full() -> None:
    """Lengths sorted in windows: little of what a batch may hold is padding or unused."""
    data, options = corpus(5003), BatchOptions(batch_tokens=1024)
    batches = take(batches_per_epoch(data, options), data, VOCABULARY, options)
    real = sum(int(np.maximum(data.source_lengths, data.target_lengths)[batch.indices].sum()) for batch in batches)
    assert real > 0.85 * options.batch_tokens * len(batches)


def test_a_sample_over_the_bound_is_a_batch_of_its_own() -> None:
    data, options = corpus(53), BatchOptions(batch_tokens=11)
    batches = take(batches_per_epoch(data, options), data, VOCABULARY, options)
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(53))
    longest = np.maximum(data.source_lengths, data.target_lengths) + 1
    for batch in batches:
        assert len(batch.indices) == 1 or longest[batch.indices].max() * len(batch.indices) <= 11


@pytest.mark.parametrize("size", SIZES)
def test_a_stream_begun_later_is_the_rest_of_the_stream(size: dict) -> None:
    data, options = corpus(211), BatchOptions(**size, seed=3, window=31)
    total = 3 * batches_per_epoch(data, options)
    whole = take(total, data, VOCABULARY, options)
    for start in (1, 5, total // 3 - 1, total // 3, total // 3 + 1, total - 2):
        fresh = corpus(211)  # no count is remembered from before
        assert same(take(total - start, fresh, VOCABULARY, options, start=start), whole[start:])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("start", [0, 4])
def test_ranks_share_the_stream(world: int, start: int) -> None:
    data, options = corpus(101), BatchOptions(batch_tokens=307, window=29)
    whole = take(30 * world, data, VOCABULARY, options)
    for rank in range(world):
        own = take(30 - start, data, VOCABULARY, options, start=start, rank=rank, world=world)
        assert same(own, whole[start * world + rank :: world])


def test_epochs_and_seeds_differ_and_the_same_seed_does_not() -> None:
    data, options = corpus(211), BatchOptions(batch_size=7, window=50)
    number = batches_per_epoch(data, options)
    first, second = (batches := take(2 * number, data, VOCABULARY, options))[:number], batches[number:]
    assert not same(first, second)
    assert not same(first, take(number, data, VOCABULARY, BatchOptions(batch_size=7, window=50, seed=1)))
    assert same(first, take(number, corpus(211), VOCABULARY, options))


def test_epochs_grow_evenly() -> None:
    data, options = corpus(211), BatchOptions(batch_tokens=307, window=31)
    told = [epochs(data, options, number) for number in range(100)]
    assert told[0] == 0.0
    assert all(0 < after - before < 0.2 for before, after in pairwise(told))


def test_rows_begin_and_end_and_are_padded_on_the_right() -> None:
    batch = collate([[5, 6, 7], [8]], [[9], [10, 11]], VOCABULARY)
    assert batch.source.tokens.tolist() == [[5, 6, 7, 2], [8, 2, 0, 0]]
    assert batch.target.tokens.tolist() == [[1, 9, 2, 0], [1, 10, 11, 2]]
    assert batch.source.lengths.tolist() == [4, 2]
    assert batch.source.real.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.source.tokens.dtype == torch.int64
    alone = collate_sources([[5, 6, 7], [8]], VOCABULARY)
    assert torch.equal(alone.tokens, batch.source.tokens)
    moved = batch.to("meta")
    assert moved.source.tokens.device.type == moved.indices.device.type == "meta"


@pytest.mark.parametrize("fields", [{}, {"batch_size": 3, "batch_tokens": 3}, {"batch_size": 3, "window": 0}])
def test_wrong_options_are_errors(fields: dict) -> None:
    with pytest.raises(UserError, match=r"batch_tokens|window"):
        BatchOptions(**fields)
