"""Words as tokens, and windows of complete words over sentences that are too long."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from regard.layers.inputs import Ids
from regard.text.special_tokens import FramedRow, SpecialTokens
from regard.text.tokenizer import Tokenizer


class WordTokens(NamedTuple):
    """A sentence's tokens, and which of them is each word's first."""

    tokens: list[int]
    firsts: list[int]


class Window(NamedTuple):
    """Tokens begin … end of a sentence, of which the words `word` … `until` count."""

    sentence: int
    begin: int
    end: int
    word: int
    until: int

    def row(self, frame: SpecialTokens, tokens: Ids, firsts: Ids) -> tuple[FramedRow, np.ndarray]:
        """Its row, from the sentence's tokens and its words' first ones, and the positions of the words that count."""
        row = frame.wrap(tokens[self.begin : self.end])
        return row, np.asarray(firsts[self.word : self.until]) - self.begin + row.begins[0]


def tokenize_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[WordTokens]:
    """Words as tokens, tokenized within their sentence; a word of which nothing is left becomes unknown."""
    encodings = tokenizer.inner.encode_batch([" ".join(words) for words in sentences], add_special_tokens=False)
    return [
        _align(words, encoding.ids, encoding.offsets, tokenizer.unknown)
        for words, encoding in zip(sentences, encodings, strict=True)
    ]


def _align(words: Sequence[str], ids: list[int], offsets: list[tuple[int, int]], unknown: int) -> WordTokens:
    word_ends = np.cumsum([len(word) + 1 for word in words])  # the space after a word belongs to it
    owners = np.searchsorted(word_ends, [max(0, end - 1) for _, end in offsets], "right").tolist()
    tokens = []
    firsts = []
    next_token = 0
    for word in range(len(words)):
        firsts.append(len(tokens))
        while next_token < len(ids) and owners[next_token] <= word:
            tokens.append(ids[next_token])
            next_token += 1
        if len(tokens) == firsts[-1]:
            tokens.append(unknown)
    return WordTokens(tokens, firsts)


def split_into_windows(firsts: Sequence[int], length: int, size: int) -> list[tuple[int, int, int, int]]:
    """Windows of complete words, (begin, end, word, until): each as long as possible, half of it new.

    A window whose words all have more context in others is left out.
    A word with more tokens than `size` is represented by the first of them.
    """
    word_ends = [*firsts[1:], length]
    spans = []
    word = 0
    while True:
        until = max(word + 1, int(np.searchsorted(word_ends, firsts[word] + size, "right")))
        spans.append((word, until))
        if until >= len(firsts):
            break
        word = min(until, max(word + 1, int(np.searchsorted(firsts, firsts[word] + size // 2))))
    borders = [0, *(_border(firsts, word_ends, *pair) for pair in pairwise(spans)), len(firsts)]
    return [
        (firsts[first], min(word_ends[last - 1], firsts[first] + size), border, next_border)
        for (first, last), (border, next_border) in zip(spans, pairwise(borders), strict=True)
        if border < next_border
    ]


def _border(firsts: Sequence[int], word_ends: Sequence[int], one: tuple[int, int], other: tuple[int, int]) -> int:
    """The first word that has more context before it in the second window than after it in the first."""
    begin = firsts[other[0]]
    end = word_ends[one[1] - 1]
    for word in range(other[0], one[1]):
        if firsts[word] - begin > end - word_ends[word]:
            return word
    return one[1]
