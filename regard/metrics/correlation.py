"""How well numbers are told: Pearson's and Spearman's correlation, and the mean squared error. Pure functions."""

from collections.abc import Sequence

import numpy as np

from regard.metrics.bleu import Score, resampled


def pearson(found: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray) -> float:
    """Covariance ÷ both deviations, between −1 and 1; 0 where one of both never changes."""
    one, other = (np.asarray(each, float) - np.mean(each) for each in (found, wanted))
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(np.clip((one @ other) / size, -1.0, 1.0)) if size > 0 else 0.0


def spearman(found: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(ranks(found), ranks(wanted))


def ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The place of each value in their order, from 1 on; equal ones share the mean of their places."""
    _, which, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[which]


def squared_error(found: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray) -> float:
    return float(np.mean((np.asarray(found, float) - np.asarray(wanted, float)) ** 2))


def correlations(found: Sequence[float] | np.ndarray, wanted: Sequence[float] | np.ndarray) -> list[Score]:
    """Both in percent, with intervals."""
    one, other = np.asarray(found, float), np.asarray(wanted, float)
    return [
        resampled("pearsonr", lambda some: 100 * pearson(one[some], other[some]), len(one)),
        resampled("spearmanr", lambda some: 100 * spearman(one[some], other[some]), len(one)),
    ]


def report(found: Sequence[float], wanted: Sequence[float]) -> list[Score]:
    """Both correlations in percent and the squared error, with intervals."""
    one, other = np.asarray(found, float), np.asarray(wanted, float)
    error = resampled("squared_error", lambda some: squared_error(one[some], other[some]), len(one))
    return [*correlations(one, other), error]
