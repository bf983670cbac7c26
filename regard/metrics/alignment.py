"""How attention moves through a recording: numbers of an alignment of output units to encoder states.

Shapes: weights (units, states), whose rows sum to one.
"""

import numpy as np


def centres(weights: np.ndarray) -> np.ndarray:
    """The mean position that each unit attends to."""
    return weights @ np.arange(weights.shape[1])


def monotonicity(weights: np.ndarray) -> float:
    """The share of units whose centre of attention is not before that of the previous one; 1 for a single unit."""
    steps = np.diff(centres(weights))
    return float((steps >= -1e-6).mean()) if len(steps) else 1.0


def coverage(weights: np.ndarray) -> float:
    """The mean over states of min(1, attention received ÷ even share): 1 where all parts are attended to alike.

    The even share of a state is units ÷ states; with as many units as states this is what Wu et al. 2016, equation
    14, takes the logarithm of.
    """
    units, states = weights.shape
    return float(np.minimum(1.0, weights.sum(0) * states / units).mean())
