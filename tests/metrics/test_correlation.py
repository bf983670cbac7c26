"""Correlations of regression predictions."""

import numpy as np

from regard.metrics.correlation import pearson


def test_a_constant_has_no_correlation() -> None:
    values = np.full(100, 0.1, np.float32)
    assert pearson(values, np.random.default_rng(1).normal(size=100)) == 0.0
