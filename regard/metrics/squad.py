"""Exact match and F1 of extractive question answering, as in the SQuAD evaluation script.

Rajpurkar et al. 2016, section 6.1.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(answer: str, golds: Sequence[str]) -> float:
    """1 if an answer is one of the golds, normalised; without golds the right answer is empty."""
    return float(any(normalise(answer) == normalise(gold) for gold in _non_empty(golds)))


def f1(answer: str, golds: Sequence[str]) -> float:
    """The F1 of the words shared with the most similar gold; if either is empty, whether both are."""
    return max(_overlap(normalise(answer).split(), normalise(gold).split()) for gold in _non_empty(golds))


SCORES = {"exact_match": exact, "f1": f1}


def _non_empty(golds: Sequence[str]) -> Sequence[str]:
    return [gold for gold in golds if normalise(gold)] or [""]


def _overlap(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    shared = sum((Counter(answer) & Counter(gold)).values())
    return 2.0 * shared / (len(answer) + len(gold))
