"""Error rates against the edit distance written out."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.metrics.error_rate import compare, edits, normalise, quick, score

texts = st.lists(st.lists(st.sampled_from("abc"), max_size=5).map(" ".join), min_size=1, max_size=4)


def distance(one: list[str], other: list[str]) -> int:
    """Levenshtein 1966."""

    @cache
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != other[j - 1]))

    return of(len(one), len(other))


@settings(max_examples=30, deadline=None)
@given(texts, texts)
def test_edits_are_the_edit_distance(references, predictions):
    count = min(len(references), len(predictions))
    references, predictions = references[:count], predictions[:count]
    for metric, units in (("wer", str.split), ("per", str.split), ("cer", list)):
        counted = edits(metric, predictions, references)
        for row in range(count):
            reference, prediction = units(references[row]), units(predictions[row])
            assert counted.counts[row].sum() == distance(reference, prediction)
            assert counted.units[row] == len(reference)
            _, deletions, insertions = counted.counts[row]
            assert len(prediction) == len(reference) - deletions + insertions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello,  World!", "hello world"),
        ("Don't — don’t 'quote'", "don't don't quote"),
        ("50 % of €3.50", "50 of 3 50"),
        ("ÄÖ\tﬁn", "äö fin"),
        ("...", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected
    assert normalise(expected) == expected


def test_phonemes_keep_their_case_and_marks():
    assert quick(["per"], ["AH0 T"], ["ah0 T"]) == {"per": 50.0}
    assert quick(["wer", "cer"], ["The cat."], ["the cat"]) == {"wer": 0.0, "cer": 0.0}


def test_the_rate_is_of_all_samples_together_and_has_an_interval():
    references, predictions = ["a b c d", "e"] * 20, ["a b c d", "f"] * 20
    rate = score("wer", predictions, references)
    assert rate.value == pytest.approx(20.0)
    assert 0 < rate.interval < 20
    assert score("wer", references, references).interval == 0


def test_comparisons():
    references = [f"{index} a b c" for index in range(40)]
    worse = [text.replace("a", "x") for text in references]
    assert compare("wer", references, worse, references).p_value < 0.05
    same = compare("wer", worse, worse, references)
    assert same.p_value == 1.0
    assert same.value == same.other == pytest.approx(25.0)


def test_empty_references_count_insertions():
    counted = edits("wer", ["a b"], [""])
    assert np.array_equal(counted.counts, [[0, 0, 2]])
