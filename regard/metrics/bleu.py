"""BLEU, chrF and exact match of translations against references, by sacreBLEU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore
from sacrebleu.significance import PairedTest

from regard.metrics.bootstrap import RESAMPLES, SIGNATURE, Difference, Score, bootstrap_mean, paired_test

Metrics = dict[str, BLEU | CHRF]
Streams = Sequence[Sequence[Any]]  # the first reference of each answer, the second ones, …; None where it has fewer


def quick(answers: list[str], references: list[str], lowercase: bool) -> dict[str, float]:
    """The values alone, for the evaluations during training."""
    exact = float(np.mean(exact_matches(answers, references, lowercase)))
    return corpus_values(_metrics(lowercase), answers, [references]) | {"exact": exact}


def score(answers: list[str], references: list[str], lowercase: bool) -> list[Score]:
    """BLEU, chrF2 and exact match, each with its interval."""
    exact = exact_matches(answers, references, lowercase)
    signature = f"nrefs:1|{SIGNATURE}|case:{'lc' if lowercase else 'mixed'}"
    return [*corpus_scores(_metrics(lowercase), answers, [references]), bootstrap_mean("exact", exact, signature)]


def compare(answers: list[str], others: list[str], references: list[str], lowercase: bool) -> list[Difference]:
    """Paired tests of BLEU, chrF2 and exact match."""
    exact = [exact_matches(system, references, lowercase) for system in (answers, others)]
    return [*corpus_differences(_metrics(lowercase), answers, others, [references]), paired_test("exact", *exact)]


def corpus_values(metrics: Metrics, answers: Sequence[str], streams: Streams) -> dict[str, float]:
    """The values of sacreBLEU's metrics."""
    return {name: metric.corpus_score(answers, streams).score for name, metric in metrics.items()}


def corpus_scores(metrics: Metrics, answers: Sequence[str], streams: Streams) -> list[Score]:
    """The values of sacreBLEU's metrics, each with its interval and signature."""
    scores = []
    for name, metric in metrics.items():
        result = metric.corpus_score(answers, streams, n_bootstrap=RESAMPLES)
        scores.append(Score(name, result.score, float(getattr(result, "_ci", 0.0)), str(metric.get_signature())))
    return scores


def corpus_differences(
    metrics: Metrics, answers: Sequence[str], others: Sequence[str], streams: Streams
) -> list[Difference]:
    """Paired bootstrap resampling (Koehn 2004), by sacreBLEU."""
    systems: list[tuple[str, Sequence[str]]] = [("first", answers), ("second", others)]
    differences = []
    for name, metric in metrics.items():  # one at a time: sacreBLEU gives BLEU of every order the same name
        test = PairedTest(systems, {name: metric}, streams, test_type="bs", n_samples=RESAMPLES)
        results: dict[str, Any] = test()[1]
        first, second = next(values for key, values in results.items() if key != "System")
        p_value = 1.0 if answers == others else float(second.p_value)  # without variation resampling cannot tell
        differences.append(Difference(name, first.score, second.score, p_value))
    return differences


def exact_matches(answers: list[str], references: list[str], lowercase: bool) -> np.ndarray:
    """For each answer 100 if it equals its reference, else 0."""
    fold = str.lower if lowercase else str
    return 100.0 * np.array([fold(a) == fold(r) for a, r in zip(answers, references, strict=True)], float)


def _metrics(lowercase: bool) -> Metrics:
    return {"bleu": BLEU(lowercase=lowercase, force=True), "chrf": ChrF(lowercase=lowercase)}


class ChrF(CHRF):
    """sacreBLEU cannot average resamples without any match, whose score is a float, and others, which are float32."""

    def _compute_score_from_stats(self, stats: list[int]) -> CHRFScore:
        result = super()._compute_score_from_stats(stats)
        result.score = float(result.score)
        return result
