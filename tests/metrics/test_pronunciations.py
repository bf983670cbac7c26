"""Word and phoneme error rate where several references are right."""

from functools import cache
from itertools import product

import pytest

from regard.metrics.pronunciations import compare, edit_distance, quick, score


def brute_force(output: tuple[str, ...], reference: tuple[str, ...]) -> int:
    """The definition, as a recursion over the first tokens."""

    @cache
    def distance(i: int, j: int) -> int:
        if i == len(output) or j == len(reference):
            return len(output) - i + len(reference) - j
        substitution = distance(i + 1, j + 1) + (output[i] != reference[j])
        return min(substitution, 1 + distance(i + 1, j), 1 + distance(i, j + 1))

    return distance(0, 0)


def test_the_edit_distance_is_that_of_its_definition() -> None:
    texts = [text for length in range(4) for text in product("ab", repeat=length)]
    for output, reference in product(texts, texts):
        assert edit_distance(output, reference) == brute_force(output, reference)


def test_each_pronunciation_of_a_word_is_right() -> None:
    references = [["T AH M EY T OW", "T AH M AA T OW"], ["K AE T"], ["AH", "EY"]]
    assert quick(["T AH M AA T OW", "K AE T", "AH"], references) == {"wer": 0.0, "per": 0.0}
    rates = quick(["T AH M AA T", "K AE T", "EY"], references)
    assert rates == {"wer": pytest.approx(100 / 3), "per": pytest.approx(100 * 1 / (6 + 3 + 1))}


def test_edits_are_counted_against_the_closest_pronunciation() -> None:
    assert quick(["A B C D"], [["A", "A B C X Y"]]) == {"wer": 100.0, "per": pytest.approx(100 * 2 / 5)}
    assert quick([""], [["A B"]]) == {"wer": 100.0, "per": 100.0}


def test_scores_have_the_values_and_an_interval() -> None:
    outputs, references = ["A", "B", "A B", "B"] * 9, [["A"], ["A", "B"], ["A"], ["A"]] * 9
    scores = {each.name: each for each in score(outputs, references)}
    assert {name: each.value for name, each in scores.items()} == pytest.approx(quick(outputs, references))
    assert scores["wer"].value == 50 and 0 < scores["wer"].interval < 30
    assert scores["per"].signature.startswith("nrefs:var|")
    (difference,) = compare(outputs, ["A"] * 36, references)
    assert (difference.name, difference.value, difference.other) == ("wer", 50.0, 0.0)
    assert difference.to_dict(higher_is_better=False)["verdict"] == "second is better"
