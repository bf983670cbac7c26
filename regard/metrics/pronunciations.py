"""Word and phoneme error rate of pronunciations, in percent, where a word may have several that are right.

    wer   words whose output equals none of their pronunciations
    per   insertions, deletions and substitutions (Levenshtein 1966) against the pronunciation that needs fewest, per
          phoneme of these pronunciations

Phonemes are separated by spaces.
"""

from collections.abc import Sequence

import numpy as np

from regard.metrics.bootstrap import SIGNATURE, Difference, Score, bootstrap, paired_test

References = Sequence[Sequence[str]]  # of each word


def quick(outputs: Sequence[str], references: References) -> dict[str, float]:
    """The values alone, for the evaluations during training."""
    return _rates(_by_word(outputs, references))


def score(outputs: Sequence[str], references: References) -> list[Score]:
    """Both rates with their intervals."""
    words = _by_word(outputs, references)
    count = {len(texts) for texts in references}
    signature = f"nrefs:{count.pop() if len(count) == 1 else 'var'}|{SIGNATURE}"
    return bootstrap(lambda rows: _rates(words[rows]), len(words), signature)


def compare(outputs: Sequence[str], others: Sequence[str], references: References) -> list[Difference]:
    """Paired test of the word error rates of two systems."""
    return [paired_test("wer", *(100.0 * (_by_word(system, references)[:, 0] > 0) for system in (outputs, others)))]


def _by_word(outputs: Sequence[str], references: References) -> np.ndarray:
    """Edits and phonemes of each word (words, 2)."""
    words = []
    for output, texts in zip(outputs, references, strict=True):
        phonemes = output.split()
        words.append(min((edit_distance(phonemes, text.split()), len(text.split())) for text in texts))
    return np.array(words, float).reshape(-1, 2)


def _rates(words: np.ndarray) -> dict[str, float]:
    edits, phonemes = words.sum(0)
    return {"wer": 100.0 * float((words[:, 0] > 0).mean()), "per": 100.0 * float(edits / phonemes)}


def edit_distance(output: Sequence[str], reference: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other."""
    row = list(range(len(reference) + 1))  # distances from the empty output
    for deleted, token in enumerate(output, 1):
        diagonal = row[0]
        row[0] = deleted
        for index, expected in enumerate(reference, 1):
            substituted = diagonal + (token != expected)
            diagonal = row[index]
            row[index] = min(substituted, row[index] + 1, row[index - 1] + 1)
    return row[-1]
