"""BLEU, chrF and exact match of translations against references, by sacreBLEU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore
from sacrebleu.significance import PairedTest

from regard.metrics.bootstrap import RESAMPLES, SIGNATURE, Difference, Score, bootstrap_mean, paired_test


def quick(answers: list[str], references: list[str], lowercase: bool) -> dict[str, float]:
    """The values alone, for the evaluations during training."""
    scores = {name: metric.corpus_score(answers, [references]).score for name, metric in _metrics(lowercase).items()}
    return scores | {"exact": float(np.mean(exact_matches(answers, references, lowercase)))}


def score(answers: list[str], references: list[str], lowercase: bool) -> list[Score]:
    """BLEU, chrF2 and exact match, each with its interval."""
    scores = []
    for name, metric in _metrics(lowercase).items():
        result = metric.corpus_score(answers, [references], n_bootstrap=RESAMPLES)
        scores.append(Score(name, result.score, float(getattr(result, "_ci", 0.0)), str(metric.get_signature())))
    exact = exact_matches(answers, references, lowercase)
    signature = f"nrefs:1|{SIGNATURE}|case:{'lc' if lowercase else 'mixed'}"
    return [*scores, bootstrap_mean("exact", exact, signature)]


def compare(answers: list[str], others: list[str], references: list[str], lowercase: bool) -> list[Difference]:
    """Paired bootstrap resampling (Koehn 2004), by sacreBLEU."""
    systems: list[tuple[str, Sequence[str]]] = [("first", answers), ("second", others)]
    test = PairedTest(systems, _metrics(lowercase), [references], test_type="bs", n_samples=RESAMPLES)
    results: dict[str, Any] = test()[1]
    differences = []
    for key, name in (("BLEU", "bleu"), ("chrF2", "chrf")):
        first, second = results[key]
        p_value = 1.0 if answers == others else float(second.p_value)  # without variation resampling cannot tell
        differences.append(Difference(name, first.score, second.score, p_value))
    exact = [exact_matches(system, references, lowercase) for system in (answers, others)]
    return [*differences, paired_test("exact", *exact)]


def exact_matches(answers: list[str], references: list[str], lowercase: bool) -> np.ndarray:
    """For each answer 100 if it equals its reference, else 0."""
    fold = str.lower if lowercase else str
    return 100.0 * np.array([fold(a) == fold(r) for a, r in zip(answers, references, strict=True)], float)


def _metrics(lowercase: bool) -> dict[str, BLEU | CHRF]:
    return {"bleu": BLEU(lowercase=lowercase, force=True), "chrf": _ChrF(lowercase=lowercase)}


class _ChrF(CHRF):
    """sacreBLEU cannot average resamples without any match, whose score is a float, and others, which are float32."""

    def _compute_score_from_stats(self, stats: list[int]) -> CHRFScore:
        result = super()._compute_score_from_stats(stats)
        result.score = float(result.score)
        return result
