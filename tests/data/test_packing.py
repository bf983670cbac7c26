"""Packed blocks: every token a target once an epoch, batch k a pure function of (seed, k), ranks share the stream."""

import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.packing import BlockBatch, PackOptions, batches_per_epoch, blocks_per_epoch, epochs, packed, windows
from regard.errors import UserError


class Numbers:
    """A text in memory whose token i is the number i."""

    def __init__(self, count: int):
        self.tokens = np.arange(count, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.tokens)


def numbers(count: int) -> Any:
    return cast(Any, Numbers(count))


def take(count: int, *arguments, **keywords) -> list[BlockBatch]:
    return list(islice(packed(*arguments, **keywords), count))


def same(first: list[BlockBatch], second: list[BlockBatch]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a.tokens, b.tokens) and torch.equal(a.indices, b.indices) for a, b in pairs)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 13), more=st.integers(1, 200), size=st.integers(1, 9), seed=st.integers(0, 2**63 - 1))
def test_every_token_is_a_target_once_an_epoch(length: int, more: int, size: int, seed: int) -> None:
    text, options = numbers(length + more), PackOptions(length, size, seed)
    count = blocks_per_epoch(text, options)
    rows = torch.cat([batch.tokens for batch in take(-(-3 * count // size), text, options)])
    assert rows.shape[1] == length + 1
    assert torch.equal(rows[:, 1:], (rows[:, :-1] + 1) % len(text))  # neighbours in the text, taken as a ring
    for epoch in range(3):
        targets = rows[epoch * count : (epoch + 1) * count, 1:].flatten().tolist()
        assert len(set(targets)) == len(targets)
        assert 0 <= len(text) - len(targets) < length


def test_borders_move_and_blocks_are_mixed_from_epoch_to_epoch() -> None:
    text, options = numbers(1700), PackOptions(17, 10)
    assert blocks_per_epoch(text, options) == 100
    batches = take(80, text, options)
    rows = torch.cat([batch.tokens for batch in batches]).view(8, 100, 18)
    assert len({int(epoch[0, 0]) % 17 for epoch in rows}) > 3
    orders = [tuple(torch.cat([batch.indices for batch in batches]).view(8, 100)[epoch].tolist()) for epoch in range(8)]
    assert len(set(orders)) == 8
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[0] != tuple(range(100))


@pytest.mark.parametrize(("count", "length", "size"), [(211, 7, 4), (30, 7, 4), (8, 7, 4), (8, 7, 1), (701, 11, 16)])
def test_a_stream_begun_later_is_the_rest_of_the_stream(count: int, length: int, size: int) -> None:
    options = PackOptions(length, size, seed=3)
    whole = take(40, numbers(count), options)
    for start in (1, 2, 5, 17, 38):
        assert same(take(40 - start, numbers(count), options, start=start), whole[start:])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("start", [0, 4])
def test_ranks_share_the_stream(world: int, start: int) -> None:
    text, options = numbers(211), PackOptions(7, 4)
    whole = take(30 * world, text, options)
    for rank in range(world):
        own = take(30 - start, text, options, start=start, rank=rank, world=world)
        assert same(own, whole[start * world + rank :: world])


def test_batches_are_of_one_size_and_seeds_differ() -> None:
    text, options = numbers(211), PackOptions(7, 4)
    batches = take(30, text, options)
    assert {tuple(batch.tokens.shape) for batch in batches} == {(4, 8)}
    assert {batch.tokens.dtype for batch in batches} == {batch.indices.dtype for batch in batches} == {torch.int64}
    assert not same(batches, take(30, text, PackOptions(7, 4, seed=1)))
    assert same(batches, take(30, numbers(211), options))
    moved = batches[0].to("meta")
    assert moved.tokens.device.type == moved.indices.device.type == "meta"


@pytest.mark.parametrize("size", [1, 4, 30, 100])
def test_epochs_are_counted_in_blocks(size: int) -> None:
    text, options = numbers(211), PackOptions(7, size)
    assert blocks_per_epoch(text, options) == 30
    number = batches_per_epoch(text, options)
    assert number - 1 < 30 / size <= number
    assert epochs(text, options, 0) == 0.0
    assert epochs(text, options, 3) == pytest.approx(3 * size / 30)


def test_reading_copies_no_more_than_a_batch(tmp_path: Path) -> None:
    path, text, options = tmp_path / "tokens", numbers(2), PackOptions(64, 8)
    np.arange(1_000_003, dtype=np.uint32).tofile(path)
    text.tokens = np.memmap(path, dtype=np.uint32, mode="r")
    take(1, text, options)  # what is loaded once is not counted
    tracemalloc.start()
    for _ in islice(packed(text, options), 100):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000  # of a text of 4 MB


@pytest.mark.parametrize(("count", "length"), [(0, 1), (1, 1), (7, 7), (3, 100)])
def test_too_short_a_text_is_an_error(count: int, length: int) -> None:
    with pytest.raises(
        UserError, match=rf"too short: {count} tokens, but one block needs {length + 1} \(data\.max_length = {length}"
    ):
        next(packed(numbers(count), PackOptions(length, 3)))


@pytest.mark.parametrize("fields", [{"length": 0, "batch_size": 1}, {"length": 1, "batch_size": 0}])
def test_wrong_options_are_errors(fields: dict) -> None:
    with pytest.raises(UserError, match="must be at least 1"):
        PackOptions(**fields)


@settings(max_examples=200, deadline=None)
@given(count=st.integers(0, 300), length=st.integers(2, 40), data=st.data())
def test_windows_count_each_token_once_with_enough_before_it(count: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, length - 1))
    counted: list[int] = []
    for begin, end, first in windows(range(count), length, stride):
        assert 0 <= begin < first < end <= count
        assert end - begin == min(length, count)
        assert all(target - begin >= min(length - stride, target) for target in range(first, end))
        counted += range(first, end)
    assert counted == list(range(1, count))


@pytest.mark.parametrize("stride", [0, 8, 9])
def test_windows_that_leave_gaps_are_refused(stride: int) -> None:
    with pytest.raises(UserError, match=rf"stride = {stride}: must be between 1 and 7"):
        next(windows(range(30), 8, stride))
