"""CIDEr and CIDEr-D against their definition, in hand-computed and random cases."""

import math

import numpy as np
import pytest

from regard.metrics.cider import caption_words, cider, cider_d

Captions = list[list[str]]
References = list[list[list[str]]]


def occurrences(ngram: tuple[str, ...], words: list[str]) -> int:
    """h in the paper: how often an n-gram occurs."""
    size = len(ngram)
    return sum(tuple(words[start : start + size]) == ngram for start in range(len(words) - size + 1))


def every_ngram(captions: Captions, references: References, size: int) -> list[tuple[str, ...]]:
    """Ω: all n-grams that occur anywhere."""
    texts = [*captions, *(text for texts in references for text in texts)]
    return sorted({tuple(text[s : s + size]) for text in texts for s in range(len(text) - size + 1)})


def by_definition(captions: Captions, references: References, defended: bool) -> np.ndarray:
    """Equations 1 to 3, and that of CIDEr-D, over the full vector of all n-grams."""
    scores = []
    for caption, texts in zip(captions, references, strict=True):
        total = 0.0
        for size in (1, 2, 3, 4):
            vocabulary = every_ngram(captions, references, size)

            def vector(words: list[str], vocabulary: list[tuple[str, ...]] = vocabulary) -> np.ndarray:
                weights = []
                for ngram in vocabulary:
                    images = sum(min(1, sum(occurrences(ngram, text) for text in others)) for others in references)
                    idf = math.log(len(references) / max(1, images))
                    weights.append(occurrences(ngram, words) * idf)
                return np.array(weights)

            for text in texts:
                ours, theirs = vector(caption), vector(text)
                norm = np.linalg.norm(ours) * np.linalg.norm(theirs)
                if norm == 0:
                    continue
                clipped = np.minimum(ours, theirs) if defended else ours
                similarity = clipped @ theirs / norm
                if defended:
                    similarity *= 10 * math.exp(-((len(caption) - len(text)) ** 2) / (2 * 6.0**2))
                total += similarity / len(texts) / 4
        scores.append(total)
    return np.array(scores)


def random_captions(seed: int) -> tuple[Captions, References]:
    """Short captions over few words, so that n-grams repeat; numbers of references differ."""
    rng = np.random.default_rng(seed)

    def text() -> list[str]:
        return [f"w{word}" for word in rng.integers(0, 5, rng.integers(0, 9))]

    references = [[text() for _ in range(rng.integers(1, 6))] for _ in range(7)]
    captions = [text() if rng.random() < 0.6 else [*texts[0], *text()[:2]] for texts in references]
    return captions, references


@pytest.mark.parametrize("seed", range(11))
def test_they_are_the_definition(seed: int) -> None:
    captions, references = random_captions(seed)
    expected = by_definition(captions, references, defended=False)
    assert expected.max() > 0.05
    np.testing.assert_allclose(cider(captions, references), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        cider_d(captions, references), by_definition(captions, references, True), rtol=1e-12, atol=1e-12
    )


def test_an_example_computed_by_hand() -> None:
    """Two images. "a" is in both and weighs 0; "cat", "dog" and the bigrams weigh log 2."""
    references = [[["a", "cat"]], [["a", "dog"]]]
    # Image 1, caption "a cat": unigrams cos = 1, bigrams cos = 1, no trigrams: (1 + 1 + 0 + 0) / 4.
    # Image 2, caption "dog": unigrams cos = 1, no bigrams: 1 / 4; a word shorter.
    captions = [["a", "cat"], ["dog"]]
    np.testing.assert_allclose(cider(captions, references), [0.5, 0.25])
    np.testing.assert_allclose(cider_d(captions, references), [5.0, 2.5 * math.exp(-1 / 72)])


def test_repeated_words_computed_by_hand() -> None:
    """CIDEr does not see repetition, CIDEr-D clips it: min(3, 1) · 1 ÷ (3 · 1), three words against one."""
    references = [[["cat"]], [["dog"]]]
    captions = [["cat"] * 3, ["cat"]]
    np.testing.assert_allclose(cider(captions, references), [0.25, 0.0])
    np.testing.assert_allclose(cider_d(captions, references), [10 / 4 / 3 * math.exp(-4 / 72), 0.0])


def test_the_mean_over_references_computed_by_hand() -> None:
    """One of two references is equal."""
    references = [[["cat"], ["bird"]], [["dog"]], [["fish"]]]
    np.testing.assert_allclose(cider([["cat"], ["dog"], ["eel"]], references), [0.125, 0.25, 0.0])


def test_a_caption_equal_to_its_references_has_the_maximum() -> None:
    text = ["one", "two", "three", "four", "five"]
    other = ["six", "seven", "eight", "nine", "ten"]
    references = [[text] * 3, [other]]
    np.testing.assert_allclose(cider([text, other], references), [1.0, 1.0])
    np.testing.assert_allclose(cider_d([text, other], references), [10.0, 10.0])


def test_with_one_image_every_weight_is_zero() -> None:
    assert cider_d([["cat"]], [[["cat"]]]).tolist() == [0.0]


def test_empty_captions_and_references() -> None:
    assert cider([[], ["cat"]], [[["cat"]], [[], ["cat"]]]).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="caption 1 has no reference"):
        cider([["cat"], ["dog"]], [[["cat"]], []])


def test_words_of_a_caption() -> None:
    assert caption_words("A man's red T-shirt, 3.5 m wide!  (“Zoo”)") == [
        "a", "man's", "red", "t-shirt", "3.5", "m", "wide", "zoo",
    ]  # fmt: skip
    assert caption_words("…") == []
    assert caption_words("Ein Bär läuft.") == ["ein", "bär", "läuft"]
