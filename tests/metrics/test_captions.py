"""BLEU of each order, chrF, CIDEr and exact match of captions with several references."""

import math
from collections import Counter

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from regard.metrics.captions import compare, quick, score
from regard.metrics.cider import caption_words, cider_d

CAPTIONS = ["A red circle left of a blue square.", "a dog", "two cats on a green mat", "A bird!", "a green triangle"]
REFERENCES = [
    ["a red circle left of a blue square", "A blue square right of a red circle."],
    ["a dog runs", "the dog", "A small dog is running on grass"],
    ["two cats on a mat"],
    ["A bird", "a bird on a tree", "bird", "there is a bird in the sky"],
    ["a green triangle above a red square", "a small green triangle"],
]


def counts(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def bleu_by_definition(captions: list[list[str]], references: list[list[list[str]]], order: int) -> float:
    """Papineni et al. 2002: clipped by the largest count in a reference, closest reference length."""
    logs = 0.0
    for n in range(1, order + 1):
        matched = total = 0
        for caption, texts in zip(captions, references, strict=True):
            limit = Counter[tuple[str, ...]]()
            for text in texts:
                limit |= counts(text, n)
            matched += (counts(caption, n) & limit).total()
            total += counts(caption, n).total()
        logs += math.log(matched / total) / order
    length = sum(map(len, captions))
    closest = [
        min((abs(len(text) - len(caption)), len(text)) for text in texts)[1]
        for caption, texts in zip(captions, references, strict=True)
    ]
    return 100 * math.exp(min(0.0, 1 - sum(closest) / length) + logs)


def test_bleu_of_each_order_is_the_definition() -> None:
    values = quick(CAPTIONS, REFERENCES)
    words = [caption_words(text) for text in CAPTIONS]
    expected = [[caption_words(text) for text in texts] for texts in REFERENCES]
    for order in (1, 2, 3, 4):
        assert values[f"bleu{order}"] == pytest.approx(bleu_by_definition(words, expected, order), rel=1e-9)
    assert values["bleu1"] > values["bleu2"] > values["bleu3"] > values["bleu4"] > 0
    assert values["cider"] == pytest.approx(100 * cider_d(words, expected).mean())
    assert values["exact"] == pytest.approx(100 * 2 / 5)


def test_with_one_reference_bleu4_is_sacrebleu_on_the_same_words() -> None:
    references = [texts[:1] for texts in REFERENCES]
    streams = [[" ".join(caption_words(text)) for (text,) in references]]
    expected = BLEU(lowercase=True, tokenize="none").corpus_score(
        [" ".join(caption_words(text)) for text in CAPTIONS], streams
    )
    assert quick(CAPTIONS, references)["bleu4"] == pytest.approx(expected.score)


def test_more_references_do_not_lower_chrf() -> None:
    """chrF takes the best reference of each caption."""
    one = quick(CAPTIONS, [texts[:1] for texts in REFERENCES])["chrf"]
    assert quick(CAPTIONS, REFERENCES)["chrf"] > one
    assert quick(CAPTIONS, [[*texts, text] for texts, text in zip(REFERENCES, CAPTIONS, strict=True)])["chrf"] == 100.0


def test_scores_have_intervals_and_signatures() -> None:
    scores = {each.name: each for each in score(CAPTIONS, REFERENCES)}
    values = quick(CAPTIONS, REFERENCES)
    assert list(scores) == ["bleu1", "bleu2", "bleu3", "bleu4", "chrf", "cider", "exact"]
    for name, each in scores.items():
        assert each.value == pytest.approx(values[name])
        assert each.interval >= 0
        assert "nrefs:var" in each.signature
    assert "cider-d|n:4|sigma:6" in scores["cider"].signature
    single = score(CAPTIONS, [texts[:1] for texts in REFERENCES])
    assert all("nrefs:1|" in each.signature for each in single)


def test_the_order_of_references_and_of_images_does_not_matter() -> None:
    turned = quick(CAPTIONS[::-1], [texts[::-1] for texts in REFERENCES[::-1]])
    assert turned == pytest.approx(quick(CAPTIONS, REFERENCES))


def test_differences_of_two_systems() -> None:
    captions = CAPTIONS * 7
    references = REFERENCES * 7
    worse = ["something else"] * len(captions)
    differences = {each.name: each for each in compare(captions, worse, references)}
    assert list(differences) == ["bleu1", "bleu2", "bleu3", "bleu4", "chrf", "cider", "exact"]
    values = quick(captions, references)
    for name, each in differences.items():
        assert each.value == pytest.approx(values[name])
        assert each.value > each.other
        assert not each.is_noise
    same = compare(captions, captions, references)
    assert all(each.value == each.other and each.p_value == 1.0 for each in same)


def test_empty_captions() -> None:
    values = quick(["", ""], [["a cat"], ["a dog", "dog"]])
    assert values == dict.fromkeys(values, 0.0)
    assert np.isfinite([each.interval for each in score(["", ""], [["a cat"], ["a dog", "dog"]])]).all()
