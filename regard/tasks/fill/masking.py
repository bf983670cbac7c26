"""Which tokens of a text are masked: dynamic masks, a pure function of a random generator.

    probability (15 %) of a row's tokens, at least one, never a special one: of them
    80 % become [MASK], 10 % another token, 10 % stay as they are        Devlin et al. 2019, section 3.1

Whole-word masking: the pieces of a word are masked together. The tokenizer's markers show which pieces continue
a word: ## before those that do, Ġ or ▁ before those that do not. A punctuation mark is a separate word.

Shapes: batch, length.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from regard.text.detokenizer import BYTE_TO_UNICODE
from regard.text.special_tokens import mask_token_of
from regard.text.tokenizer import SPACE, Tokenizer

BLANKS = tuple(BYTE_TO_UNICODE[byte] for byte in b" \n\r\t")  # as byte-level pieces write them

MASK_SHARE = 0.8  # of the chosen tokens

RANDOM_SHARE = 0.1


class Masker(NamedTuple):
    """The properties of a tokenizer's tokens that masking needs."""

    mask: int
    special: np.ndarray  # (size): tokens that are never masked
    continues: np.ndarray  # (size): pieces that continue a word
    replacements: np.ndarray  # what a masked token may become

    def mask_tokens(
        self,
        tokens: np.ndarray,
        real: np.ndarray,
        rng: np.random.Generator,
        probability: float,
        whole_word_mask: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows with their masked tokens replaced, and True at these positions; `real` is False on padding."""
        maskable = real & ~self.special[tokens]
        counts = np.maximum(1, np.rint(probability * maskable.sum(1))).astype(int)
        if whole_word_mask:
            chosen = self._choose_words(tokens, maskable, counts, rng)
        else:
            keys = np.where(maskable, rng.random(maskable.shape), np.inf)
            ranks = np.argsort(np.argsort(keys, 1, kind="stable"), 1, kind="stable")
            chosen = maskable & (ranks < counts[:, None])
        drawn = rng.random(tokens.shape)
        masked = np.where(chosen & (drawn < MASK_SHARE), self.mask, tokens)
        random_tokens = self.replacements[rng.integers(len(self.replacements), size=tokens.shape)]
        replaced = chosen & (drawn >= MASK_SHARE) & (drawn < MASK_SHARE + RANDOM_SHARE)
        return np.where(replaced, random_tokens, masked), chosen

    def _choose_words(
        self, tokens: np.ndarray, maskable: np.ndarray, counts: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Words in random order, as long as they fit into a row's count."""
        before = np.pad(maskable[:, :-1], ((0, 0), (1, 0)))
        words = np.cumsum(maskable & ~(self.continues[tokens] & before), 1) - 1
        chosen = np.zeros_like(maskable)
        for row, (count, word_of, here) in enumerate(zip(counts.tolist(), words, maskable, strict=True)):
            sizes = np.bincount(word_of[here])
            order = rng.permutation(len(sizes))
            taken = np.zeros(len(sizes), bool)
            for word in order.tolist():
                if sizes[word] <= count:
                    taken[word] = True
                    count -= int(sizes[word])
            if not taken.any():
                taken[order[:1]] = True
            chosen[row, here] = taken[word_of[here]]
        return chosen


def masker_of(tokenizer: Tokenizer) -> Masker:
    """The masker of a tokenizer, which must have a mask token."""
    mask = mask_token_of(tokenizer)
    special = np.ones(tokenizer.size, bool)
    continues = np.zeros(tokenizer.size, bool)
    is_continuation = _word_continuation(tokenizer)
    for piece, token in tokenizer.table.items():
        special[token] = token in (mask, *tokenizer.ids.values()) or not tokenizer.shows(token)
        continues[token] = not special[token] and is_continuation(piece)
    return Masker(mask, special, continues, np.flatnonzero(~special))


def _word_continuation(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """How this tokenizer marks a piece that continues a word."""
    if any(piece.startswith("##") and len(piece) > 2 for piece in tokenizer.table):
        return lambda piece: piece.startswith("##") and len(piece) > 2
    word_starts = BLANKS if tokenizer.byte_level else (SPACE,)
    if not any(piece.startswith(word_starts) for piece in tokenizer.table):
        return lambda piece: False
    return lambda piece: not piece.startswith(word_starts) and any(map(str.isalnum, piece))
