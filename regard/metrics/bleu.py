"""Scores of answers against references: the field's own metrics, with signatures and bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

RESAMPLES = 1000

SEED = 12345


@dataclass(frozen=True)
class Score:
    """A figure, the half-width of its 95 % bootstrap interval, and how it was computed."""

    name: str
    value: float
    interval: float
    signature: str


@dataclass(frozen=True)
class Difference:
    """Two systems on the same sentences: their scores, and how likely chance alone makes a difference this large."""

    name: str
    value: float
    other: float
    p_value: float

    @property
    def is_noise(self) -> bool:
        return self.p_value >= 0.05

    def told(self, ascending: bool = True) -> dict[str, Any]:
        """For a report, with the verdict in words; less is better where a metric does not ascend."""
        if self.value == self.other:
            verdict = "no difference"
        elif self.is_noise:
            verdict = "may be chance"
        else:
            verdict = "first is better" if (self.value > self.other) == ascending else "second is better"
        return {
            "metric": self.name,
            "first": self.value,
            "second": self.other,
            "p": self.p_value,
            "verdict": verdict,
        }


def quick(answers: list[str], references: list[str], lowercase: bool) -> dict[str, float]:
    """The figures alone, for the evaluations during training."""
    return {
        "bleu": BLEU(lowercase=lowercase, force=True).corpus_score(answers, [references]).score,
        "chrf": CHRF(lowercase=lowercase).corpus_score(answers, [references]).score,
        "exact": 100.0 * float(np.mean(matches(answers, references, lowercase))),
    }


def score(answers: list[str], references: list[str], lowercase: bool) -> list[Score]:
    """BLEU, chrF2 and exact match, each with its interval."""
    found = []
    for name, metric in _metrics(lowercase).items():
        result = metric.corpus_score(answers, [references], n_bootstrap=RESAMPLES)
        found.append(Score(name, result.score, getattr(result, "_ci", 0.0), str(metric.get_signature())))
    hits = 100.0 * matches(answers, references, lowercase)
    return [*found, mean_score("exact", hits, "nrefs:1|", f"|case:{'lc' if lowercase else 'mixed'}")]


def mean_score(name: str, values: np.ndarray, before: str = "", behind: str = "") -> Score:
    """The mean of one figure a sample, with its interval; what stands round the signature."""
    chance = np.random.default_rng(SEED)
    return spread(
        name,
        float(values.mean()),
        [chance.choice(values, len(values)).mean() for _ in range(RESAMPLES)],
        f"{before}bs:{RESAMPLES}|seed:{SEED}{behind}",
    )


def resampled(name: str, figure: Callable[[np.ndarray], float], samples: int, before: str = "") -> Score:
    """A figure over samples given by their numbers, with its interval over resamples of them (Efron 1979)."""
    chance = np.random.default_rng(SEED)
    values = [figure(chance.integers(samples, size=samples)) for _ in range(RESAMPLES)]
    return spread(name, figure(np.arange(samples)), values, f"{before}bs:{RESAMPLES}|seed:{SEED}")


def spread(name: str, value: float, values: Sequence[float] | np.ndarray, signature: str) -> Score:
    """A figure with its interval from what the resamples gave."""
    low, high = np.percentile(values, [2.5, 97.5])
    return Score(name, float(value), float(high - low) / 2, signature)


def compare(answers: list[str], others: list[str], references: list[str], lowercase: bool) -> list[Difference]:
    """Paired bootstrap resampling (Koehn 2004), by sacreBLEU."""
    systems: list[tuple[str, Sequence[str]]] = [("first", answers), ("second", others)]
    test = PairedTest(systems, _metrics(lowercase), [references], test_type="bs", n_samples=RESAMPLES)
    results: dict[str, Any] = test()[1]
    found = []
    for key, (first, second) in results.items():
        if key != "System":
            name = {"BLEU": "bleu", "chrF2": "chrf"}[key]
            p_value = 1.0 if answers == others else float(second.p_value)  # nothing varies: resampling cannot tell
            found.append(Difference(name, first.score, second.score, p_value))
    hits, other = (100.0 * matches(each, references, lowercase) for each in (answers, others))
    return [*found, compare_hits("exact", hits, other)]


def compare_hits(name: str, hits: np.ndarray, other: np.ndarray) -> Difference:
    """The same paired resampling for what is right or not: how often a resample differs as much by chance."""
    chance, gain = np.random.default_rng(SEED), other - hits
    means = np.array([chance.choice(gain, len(gain)).mean() for _ in range(RESAMPLES)])
    extreme = np.abs(means - means.mean()) >= abs(gain.mean())
    p_value = 1.0 if not gain.any() else float((extreme.sum() + 1) / (RESAMPLES + 1))
    return Difference(name, float(hits.mean()), float(other.mean()), p_value)


def matches(answers: list[str], references: list[str], lowercase: bool) -> np.ndarray:
    """Which answers are their reference, letter for letter."""
    fold = str.lower if lowercase else str
    return np.array([fold(a) == fold(r) for a, r in zip(answers, references, strict=True)], float)


def _metrics(lowercase: bool) -> dict:
    return {"bleu": BLEU(lowercase=lowercase, force=True), "chrf": CHRF(lowercase=lowercase)}
