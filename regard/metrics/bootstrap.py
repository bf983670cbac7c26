"""Confidence intervals and paired tests by resampling the samples. Efron 1979; Koehn 2004."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

RESAMPLES = 1000
SEED = 12345
SIGNATURE = f"bs:{RESAMPLES}|seed:{SEED}"

T = TypeVar("T")
Statistic = Callable[[np.ndarray], Mapping[str, float]]  # indices of samples → metrics by name


@dataclass(frozen=True)
class Score:
    """A metric, the half-width of its 95 % bootstrap interval, and how it was computed."""

    name: str
    value: float
    interval: float
    signature: str


@dataclass(frozen=True)
class Difference:
    """Two systems on the same samples: their scores, and the p-value of a difference this large."""

    name: str
    value: float
    other: float
    p_value: float

    @property
    def is_noise(self) -> bool:
        return self.p_value >= 0.05

    def to_dict(self, higher_is_better: bool = True) -> dict[str, object]:
        """The fields of a report, with a verdict."""
        if self.value == self.other:
            verdict = "no difference"
        elif self.is_noise:
            verdict = "may be chance"
        else:
            verdict = "first is better" if (self.value > self.other) == higher_is_better else "second is better"
        return {"metric": self.name, "first": self.value, "second": self.other, "p": self.p_value, "verdict": verdict}


def bootstrap(statistic: Statistic, n: int, signature: str | Mapping[str, str] = SIGNATURE) -> list[Score]:
    """The metrics of `n` samples, with intervals over resamples of them; `signature` may differ by metric."""
    values = statistic(np.arange(n))
    resampled = resample(statistic, n)
    scores = []
    for name, value in values.items():
        low, high = np.percentile([metrics[name] for metrics in resampled], [2.5, 97.5])
        described = signature if isinstance(signature, str) else signature.get(name, SIGNATURE)
        scores.append(Score(name, float(value), float(high - low) / 2, described))
    return scores


def bootstrap_mean(name: str, values: np.ndarray, signature: str = SIGNATURE) -> Score:
    """The mean of one value per sample, with its interval."""
    return bootstrap(lambda rows: {name: values[rows].mean()}, len(values), signature)[0]


def paired_test(name: str, first: np.ndarray, second: np.ndarray) -> Difference:
    """Paired bootstrap test of two systems' values per sample: how often a resample differs as much by chance."""
    gain = second - first
    means = np.array(resample(lambda rows: gain[rows].mean(), len(gain)))
    extreme = np.abs(means - means.mean()) >= abs(gain.mean())
    p_value = float((extreme.sum() + 1) / (RESAMPLES + 1)) if gain.any() else 1.0
    return Difference(name, float(first.mean()), float(second.mean()), p_value)


def resample(statistic: Callable[[np.ndarray], T], n: int) -> list[T]:
    """The statistic of each resample: `n` indices drawn with replacement, the same ones for every statistic."""
    rng = np.random.default_rng(SEED)
    return [statistic(rng.integers(n, size=n)) for _ in range(RESAMPLES)]
