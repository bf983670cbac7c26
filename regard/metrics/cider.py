"""CIDEr and CIDEr-D: TF-IDF similarity of a caption's n-grams with those of its references. Vedantam et al. 2015.

    g(s) = (h_ω(s) · log(images ÷ images with ω in a reference))_ω        h_ω(s) = how often n-gram ω occurs in s
    CIDErₙ(c, S)   =      mean over s ∈ S of  g(c) · g(s) ÷ (‖g(c)‖ ‖g(s)‖)                                    eq. 2
    CIDEr-Dₙ(c, S) = 10 · mean over s ∈ S of  min(g(c), g(s)) · g(s) ÷ (‖g(c)‖ ‖g(s)‖) · exp(−(|c| − |s|)² ÷ 2σ²)

Both are the mean over n = 1 … 4. As in the authors' code, h counts n-grams, and is not divided by their number: the
clipping of CIDEr-D is by counts. Words are not stemmed. Document frequencies are those of the references: with one
image all scores are 0.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

MAX_ORDER = 4
SIGMA = 6.0  # words: the width of CIDEr-D's length penalty

Words = Sequence[str]
Vector = dict[tuple[str, ...], float]  # an n-gram's weight


def caption_words(text: str) -> list[str]:
    """The words of a caption as CIDEr compares them: lower case, without punctuation."""
    return re.findall(r"\w+(?:['’.,-]\w+)*", text.lower())


def cider(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> np.ndarray:
    """CIDEr of each caption against its references, between 0 and 1."""
    return _scores(captions, references, lambda ours, theirs: ours * theirs, lambda difference: 1.0)


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> np.ndarray:
    """CIDEr-D of each caption against its references, between 0 and 10; publications state 100 times the mean."""
    return 10.0 * _scores(
        captions,
        references,
        lambda ours, theirs: min(ours, theirs) * theirs,
        lambda difference: math.exp(-(difference**2) / (2 * SIGMA**2)),
    )


def _scores(
    captions: Sequence[Words],
    references: Sequence[Sequence[Words]],
    product: Callable[[float, float], float],
    penalty: Callable[[int], float],
) -> np.ndarray:
    """The mean over references and orders: products of n-gram weights, normalised, times a penalty for the length."""
    if not all(references):
        raise ValueError(f"caption {list(map(bool, references)).index(False)} has no reference")
    scores = np.zeros(len(captions))
    for order in range(1, MAX_ORDER + 1):
        frequency = Counter(ngram for texts in references for ngram in set().union(*(_ngrams(t, order) for t in texts)))
        for index, (caption, texts) in enumerate(zip(captions, references, strict=True)):
            ours = _weighted(caption, order, frequency, len(references))
            for text in texts:
                theirs = _weighted(text, order, frequency, len(references))
                total = sum(product(weight, theirs[ngram]) for ngram, weight in ours.items() if ngram in theirs)
                norm = _norm(ours) * _norm(theirs)
                score = total / norm * penalty(len(caption) - len(text)) if norm > 0 else 0.0
                scores[index] += score / (len(texts) * MAX_ORDER)
    return scores


def _ngrams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def _weighted(words: Words, order: int, frequency: Counter[tuple[str, ...]], images: int) -> Vector:
    """Counts times inverse document frequency; an n-gram of no reference counts as one of a single image."""
    return {
        ngram: count * math.log(images / max(1, frequency[ngram])) for ngram, count in _ngrams(words, order).items()
    }


def _norm(vector: Vector) -> float:
    return math.sqrt(sum(weight**2 for weight in vector.values()))
