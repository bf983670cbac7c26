"""Numbers of alignments at their extremes."""

import numpy as np
import pytest

from regard.metrics.alignment import centres, coverage, monotonicity


def test_a_diagonal_is_monotone_and_covers_everything():
    weights = np.kron(np.eye(4), np.full((1, 3), 1 / 3))
    assert monotonicity(weights) == 1.0
    assert coverage(weights) == pytest.approx(1.0)
    np.testing.assert_allclose(centres(weights), [1, 4, 7, 10])
    assert monotonicity(weights[::-1]) == 0.0
    assert coverage(weights[::-1]) == pytest.approx(1.0)


def test_attention_to_one_state_covers_one_state():
    weights = np.zeros((5, 10))
    weights[:, 3] = 1
    assert coverage(weights) == pytest.approx(1 / 10)
    assert monotonicity(weights) == 1.0


def test_uniform_attention_covers_everything_and_stays():
    weights = np.full((5, 7), 1 / 7)
    assert coverage(weights) == pytest.approx(1.0)
    assert monotonicity(weights) == 1.0
    assert monotonicity(weights[:1]) == 1.0


def test_a_jump_back_counts_once():
    weights = np.eye(6)[[0, 1, 2, 1, 2, 3]]
    assert monotonicity(weights) == pytest.approx(4 / 5)
