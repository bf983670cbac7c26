"""Windows over an image: partition and merge, the mask of shifted windows, and relative positions."""

import pytest
import torch

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.attention.variants import multihead
from regard.attention.windows2d import RelativePositionBias, RelativePositions, Windows

GRIDS = [(6, 9, 3, 0), (6, 9, 3, 1), (7, 11, 3, 2), (5, 8, 4, 2), (3, 8, 5, 2), (2, 2, 7, 3)]


@pytest.mark.parametrize("grid", GRIDS)
def test_merged_windows_are_the_grid(grid):
    rows, columns, size, shift = grid
    windows = Windows.over(rows, columns, size, shift)
    x = torch.randn(2, rows, columns, 5)
    inside = windows.partition(x)
    assert inside.shape == (2 * windows.count, windows.size**2, 5)
    assert torch.equal(windows.merge(inside, rows, columns), x)


def test_one_window_covers_a_grid_that_is_not_larger():
    assert Windows.over(4, 4, 4, 2) == Windows(4, 4, 4, 0)
    assert Windows.over(3, 4, 7, 3) == Windows(3, 6, 3, 0)


@torch.no_grad()
@pytest.mark.parametrize("grid", GRIDS)
def test_a_cell_attends_to_neighbours_in_its_window_only(grid):
    """The definition on the image: windows begin at `shift`, and those at the border are smaller."""
    rows, columns, size, shift = grid
    windows = Windows.over(rows, columns, size, shift)
    attention = multihead(6, 3, position_bias=RelativePositionBias(3, size))
    x = torch.randn(2, rows, columns, 6)
    with record() as recorder:
        attention.self_attend(windows.partition(x), windows.rule(2, x.device))
    (site,) = recorder.records
    weights = torch.stack([windows.view(recorder.records[site][0]).weights(batch=slice(i, i + 1))[0] for i in (0, 1)])
    row, column = torch.arange(windows.rows * windows.columns).div(windows.columns, rounding_mode="floor"), None
    column = torch.arange(windows.rows * windows.columns) % windows.columns
    window = torch.stack([(axis - windows.shift).div(windows.size, rounding_mode="floor") for axis in (row, column)])
    expected = (window[:, :, None] == window[:, None]).all(0)
    assert torch.equal(weights > 0, expected.expand_as(weights))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@torch.no_grad()
def test_rows_and_heads_of_a_record_are_those_of_all():
    windows = Windows.over(6, 9, 3, 1)
    attention = multihead(6, 3, position_bias=RelativePositionBias(3, 3))
    with record() as recorder:
        attention.self_attend(windows.partition(torch.randn(2, 6, 9, 6)), windows.rule(2, torch.device("cpu")))
    recorder.records = {"self": [windows.view(entry) for entries in recorder.records.values() for entry in entries]}
    trace = Trace(recorder, batch_index=1)
    every = trace.weights("self")
    assert every.shape == (3, 54, 54)
    assert torch.equal(trace.weights("self", head=2, rows=slice(5, 40, 7)), every[2, 5:40:7])


def test_relative_positions_are_differences_of_rows_and_columns():
    table = torch.randn(5 * 5, 2)  # of windows up to 3 × 3
    for window in (2, 3):
        positions = torch.arange(window**2)
        bias = RelativePositions(table, 3, window).rows(positions, positions)
        assert bias.shape == (1, 2, window**2, window**2)
        for query in positions.tolist():
            for key in positions.tolist():
                down, right = query // window - key // window, query % window - key % window
                assert torch.equal(bias[0, :, query, key], table[(down + 2) * 5 + right + 2])


def test_relative_positions_are_learned():
    windows = Windows.over(6, 6, 3, 1)
    attention = multihead(6, 3, position_bias=RelativePositionBias(3, 3))
    y, _ = attention.self_attend(windows.partition(torch.randn(1, 6, 6, 6)), windows.rule(1, torch.device("cpu")))
    y.square().sum().backward()
    assert attention.position_bias.table.grad.abs().min() > 0  # type: ignore[union-attr]
