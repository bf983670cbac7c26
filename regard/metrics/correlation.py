"""Metrics of regression: Pearson's and Spearman's correlation, and the mean squared error. Pure functions."""

from collections.abc import Sequence

import numpy as np

from regard.metrics.bootstrap import Score, bootstrap

Values = Sequence[float] | np.ndarray


def pearson(predicted: Values, expected: Values) -> float:
    """Covariance ÷ both standard deviations, between −1 and 1; 0 where one of both is constant."""
    x, y = (np.asarray(values, float) for values in (predicted, expected))
    if not len(x) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x = x - x.mean()
    y = y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(np.clip((x @ y) / norm, -1.0, 1.0)) if norm > 0 else 0.0


def spearman(predicted: Values, expected: Values) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(ranks(predicted), ranks(expected))


def ranks(values: Values) -> np.ndarray:
    """The rank of each value, from 1 on; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def squared_error(predicted: Values, expected: Values) -> float:
    """The mean of the squared errors."""
    return float(np.mean((np.asarray(predicted, float) - np.asarray(expected, float)) ** 2))


def correlations(predicted: Values, expected: Values) -> list[Score]:
    """Both correlations in percent, with intervals."""
    x = np.asarray(predicted, float)
    y = np.asarray(expected, float)
    return bootstrap(
        lambda rows: {"pearsonr": 100 * pearson(x[rows], y[rows]), "spearmanr": 100 * spearman(x[rows], y[rows])},
        len(x),
    )


def report(predicted: Values, expected: Values) -> list[Score]:
    """Both correlations in percent and the squared error, with intervals."""
    x = np.asarray(predicted, float)
    y = np.asarray(expected, float)
    return correlations(x, y) + bootstrap(lambda rows: {"mse": squared_error(x[rows], y[rows])}, len(x))
