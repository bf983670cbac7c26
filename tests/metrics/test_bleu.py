"""BLEU and chrF of small sets."""

import pytest

from regard.metrics.bleu import compare, score


@pytest.mark.parametrize("answers", [["a", "zz"], ["zz", "x"], ["", ""], ["a b c d e", "x"]])
def test_few_answers_of_which_some_have_no_match(answers: list[str]) -> None:
    references = [answers[0] if answers[0].startswith("a") else "u", "c"]
    bleu, chrf, exact = score(answers, references, lowercase=False)
    assert exact.value == (50.0 if answers[0].startswith("a") else 0.0)
    assert bleu.value >= 0.0 and chrf.value >= 0.0
    assert isinstance(chrf.interval, float) and chrf.interval >= 0.0
    assert len(compare(answers, references, references, lowercase=False)) == 3


def test_the_signature_is_that_of_sacrebleu() -> None:
    _, chrf, _ = score(["a b"], ["a b"], lowercase=False)
    assert "nc:6|nw:0|space:no" in chrf.signature
