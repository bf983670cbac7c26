"""The times of Whisper's words: the alignment equals the reference implementation's and brute force."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.attention.recording import record
from regard.interop.whisper import SECONDS_PER_STATE
from regard.layers.audio_encoder import Encoded
from regard.models.registry import build
from regard.tasks.transcribe.alignment import alignment_weights, dynamic_time_warping, median_filter, token_times


def paths(rows: int, columns: int) -> Iterator[list[tuple[int, int]]]:
    """All monotone paths from the first cell to the last."""
    if rows == columns == 1:
        yield [(0, 0)]
        return
    for down, right in ((1, 1), (1, 0), (0, 1)):
        if rows > down and columns > right:
            for path in paths(rows - down, columns - right):
                yield [*path, (rows - 1, columns - 1)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (3, 5), (4, 4), (5, 3)])
def test_warping_is_the_best_of_all_paths(shape: tuple[int, int]) -> None:
    for seed in range(9):
        cost = np.random.default_rng(seed).normal(size=shape)
        rows, columns = dynamic_time_warping(cost)
        best = min(paths(*shape), key=lambda path: sum(cost[cell] for cell in path))
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == best


def test_warping_is_that_of_the_reference() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        from transformers.models.whisper.generation_whisper import _dynamic_time_warping as reference
    for seed in range(5):
        cost = np.random.default_rng(seed).normal(size=(23, 61)).astype(np.float32).astype(np.float64)
        for found, expected in zip(dynamic_time_warping(cost), reference(cost), strict=True):
            assert found.tolist() == expected.tolist()


def test_the_median_filter_is_that_of_the_reference() -> None:
    from transformers.models.whisper.generation_whisper import _median_filter as reference

    x = torch.randn(3, 5, 31)
    assert torch.equal(median_filter(x, 7), reference(x, 7))
    assert torch.equal(median_filter(x[..., :3], 7), x[..., :3])


SMALL = dict(family="whisper", bins=7, width=22, heads=2, depth=2, source_positions=40, max_positions=17)


@pytest.fixture
def network() -> Any:
    torch.manual_seed(0)
    network: Any = build(SMALL, vocabulary=29).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def test_times_follow_each_other_within_the_recording(network: Any) -> None:
    state = network.start_from(Encoded(torch.randn(1, 40, 22), torch.tensor([40])))
    for seconds in (0.02, 0.3, 0.8):
        times = token_times(network, state, [1, 2, 3], [5, 6, 7, 8], [(0, 1), (1, 0)], seconds)
        assert times[0][0] == 0
        assert [end for _, end in times[:-1]] == [begin for begin, _ in times[1:]]
        assert all(0 <= begin <= end < seconds for begin, end in times)
    assert token_times(network, state, [1, 2, 3], [], [(0, 1)], 0.5) == []


@torch.no_grad()
def test_weights_are_those_of_the_heads_over_the_recording_alone(network: Any) -> None:
    """As the reference computes them: a softmax over the states of the recording, normalised over tokens."""
    state = network.start_from(Encoded(torch.randn(1, 40, 22), torch.tensor([40])))
    with record() as recorder:
        network.decode(torch.tensor([[1, 2, 3, 5, 6, 7]]), state)
    rows = []
    for layer, head in ((0, 1), (1, 0)):
        used = recorder.records[f"decoder.blocks.{layer}.cross"][0]
        assert used.key is not None
        weights = (used.query[0, head] @ used.key[0, head, :31].T / 11**0.5).softmax(-1)[2:]
        rows.append(median_filter((weights - weights.mean(0)) / weights.std(0, correction=0), 7))
    found = alignment_weights(recorder, [(0, 1), (1, 0)], 2, 31)
    torch.testing.assert_close(found, torch.stack(rows).mean(0), atol=1e-4, rtol=1e-4)


def test_a_token_is_where_the_heads_look() -> None:
    """Weights along a diagonal give times along it."""
    tokens, states = 6, 60
    ideal = np.zeros((tokens, states))
    for token in range(tokens):
        ideal[token, 10 * token : 10 * token + 10] = 1
    rows, columns = dynamic_time_warping(-ideal)
    begins = columns[np.flatnonzero(np.diff(rows, prepend=-1))]
    assert begins.tolist() == [10 * token for token in range(tokens)]
    assert SECONDS_PER_STATE * begins[1] == pytest.approx(0.2)
