"""Metrics of captions with several references each: BLEU-1 … 4, chrF, CIDEr-D and exact match, in percent.

BLEU, CIDEr and exact match compare words in lower case without punctuation, as is usual for captions. BLEU and chrF are
computed by sacreBLEU. CIDEr is 100 × CIDEr-D, as publications state it.
"""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from regard.metrics.bleu import ChrF, Metrics, Streams, corpus_differences, corpus_scores, corpus_values
from regard.metrics.bootstrap import SIGNATURE, Difference, Score, bootstrap_mean, paired_test
from regard.metrics.cider import MAX_ORDER, SIGMA, caption_words, cider_d

References = Sequence[Sequence[str]]  # of each image


def quick(captions: Sequence[str], references: References) -> dict[str, float]:
    """The values alone, for the evaluations during training."""
    values: dict[str, float] = {}
    for metrics, texts, streams in _corpus(captions, references):
        values |= corpus_values(metrics, texts, streams)
    return values | {name: float(each.mean()) for name, each in _by_caption(captions, references).items()}


def score(captions: Sequence[str], references: References) -> list[Score]:
    """Every metric with its interval."""
    count = {len(texts) for texts in references}
    signature = f"nrefs:{count.pop() if len(count) == 1 else 'var'}|{SIGNATURE}|case:lc|tok:words"
    signatures = {"cider": f"{signature}|cider-d|n:{MAX_ORDER}|sigma:{SIGMA:g}"}
    scores = []
    for metrics, texts, streams in _corpus(captions, references):
        scores += corpus_scores(metrics, texts, streams)
    for name, values in _by_caption(captions, references).items():
        scores.append(bootstrap_mean(name, values, signatures.get(name, signature)))
    return scores


def compare(captions: Sequence[str], others: Sequence[str], references: References) -> list[Difference]:
    """Paired tests of two systems, for every metric."""
    differences = []
    for (metrics, first, streams), (_, second, _) in zip(
        _corpus(captions, references), _corpus(others, references), strict=True
    ):
        differences += corpus_differences(metrics, first, second, streams)
    ours, theirs = (_by_caption(system, references) for system in (captions, others))
    return differences + [paired_test(name, ours[name], theirs[name]) for name in ours]


def _corpus(captions: Sequence[str], references: References) -> list[tuple[Metrics, list[str], Streams]]:
    """sacreBLEU's metrics, and what they compare."""
    words = [_normalised(caption) for caption in captions]
    normalised = [[_normalised(text) for text in texts] for texts in references]
    bleu: Metrics = {
        f"bleu{order}": BLEU(tokenize="none", force=True, max_ngram_order=order) for order in range(1, MAX_ORDER + 1)
    }
    chrf: Metrics = {"chrf": ChrF(lowercase=True)}
    return [(bleu, words, _streams(normalised)), (chrf, list(captions), _streams(references))]


def _by_caption(captions: Sequence[str], references: References) -> dict[str, np.ndarray]:
    """Metrics that are the mean of a value for each caption."""
    words = [caption_words(caption) for caption in captions]
    expected = [[caption_words(text) for text in texts] for texts in references]
    exact = [100.0 * (caption in texts) for caption, texts in zip(words, expected, strict=True)]
    return {"cider": 100.0 * cider_d(words, expected), "exact": np.array(exact)}


def _streams(references: References) -> Streams:
    return list(zip_longest(*references))


def _normalised(text: str) -> str:
    return " ".join(caption_words(text))
