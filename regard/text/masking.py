"""Which words of a text are hidden: dynamic masks, a pure function of the numbers they are drawn from.

    share (15 %) of a row's tokens, at least one, never a special one: of them
    80 % become [MASK], 10 % another token, 10 % stay as they are        Devlin et al. 2019, section 3.1

Whole words: a word's pieces are hidden together. The tokenizer's own marks say which go on: ## before those that do,
Ġ or ▁ before those that do not; marks of punctuation are words of their own.

Shapes: batch, length.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from regard.errors import UserError
from regard.text.byte_level import BYTE_TO_UNICODE
from regard.text.tokenizer import SPACE
from regard.text.vocabulary import MISSING, Tokenizer

MASKS = ("[MASK]", "<mask>")

BLANKS = tuple(BYTE_TO_UNICODE[byte] for byte in b" \n\r\t")  # as byte-level pieces write them

HIDDEN, OTHER = 0.8, 0.1


class Masker(NamedTuple):
    """What a tokenizer says of its tokens, for masks."""

    mask: int
    special: np.ndarray  # (size): tokens that are never hidden
    goes_on: np.ndarray  # (size): pieces inside a word
    others: np.ndarray  # what a hidden token may become

    def hide(
        self, tokens: np.ndarray, real: np.ndarray, chance: np.random.Generator, share: float, whole_words: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows with their hidden tokens replaced, and True where they are; `real` is False on padding."""
        free = real & ~self.special[tokens]
        counts = np.maximum(1, np.rint(share * free.sum(1))).astype(int)
        chosen = self._words(tokens, free, counts, chance) if whole_words else _tokens(free, counts, chance)
        drawn = chance.random(tokens.shape)
        masked = np.where(chosen & (drawn < HIDDEN), self.mask, tokens)
        other = self.others[chance.integers(len(self.others), size=tokens.shape)]
        return np.where(chosen & (drawn >= HIDDEN) & (drawn < HIDDEN + OTHER), other, masked), chosen

    def _words(
        self, tokens: np.ndarray, free: np.ndarray, counts: np.ndarray, chance: np.random.Generator
    ) -> np.ndarray:
        """Whole words in random order, as long as they fit into a row's count."""
        before = np.pad(free[:, :-1], ((0, 0), (1, 0)))
        words = np.cumsum(free & ~(self.goes_on[tokens] & before), 1) - 1
        chosen = np.zeros_like(free)
        for row, (count, word, here) in enumerate(zip(counts.tolist(), words, free, strict=True)):
            sizes = np.bincount(word[here])
            order = chance.permutation(len(sizes))
            taken = np.zeros(len(sizes), bool)
            for each in order.tolist():
                if sizes[each] <= count:
                    taken[each] = True
                    count -= int(sizes[each])
            if not taken.any():
                taken[order[:1]] = True
            chosen[row, here] = taken[word[here]]
        return chosen


def _tokens(free: np.ndarray, counts: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """So many tokens of each row, each free one as likely."""
    keys = np.where(free, chance.random(free.shape), np.inf)
    ranks = np.argsort(np.argsort(keys, 1, kind="stable"), 1, kind="stable")
    return free & (ranks < counts[:, None])


def mask_of(tokenizer: Tokenizer) -> int:
    """The token that hides others."""
    named = tokenizer.settings.get("mask_token")
    named = named.get("content") if isinstance(named, dict) else named
    mask = next((tokenizer.table[name] for name in (named, *MASKS) if name in tokenizer.table), MISSING)
    if mask == MISSING:
        raise UserError(
            f"the tokenizer has no token that hides others (looked for {', '.join(MASKS)}); name it as mask_token in "
            "its tokenizer_config.json"
        )
    return mask


def masker_of(tokenizer: Tokenizer) -> Masker:
    """What there is to know of a tokenizer's tokens; it must have one that hides the others."""
    mask = mask_of(tokenizer)
    special, goes_on = np.ones(tokenizer.size, bool), np.zeros(tokenizer.size, bool)
    inside = _inside(tokenizer)
    for piece, token in tokenizer.table.items():
        special[token] = token in (mask, *tokenizer.ids.values()) or not tokenizer.shows(token)
        goes_on[token] = not special[token] and inside(piece)
    return Masker(mask, special, goes_on, np.flatnonzero(~special))


def _inside(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """How this tokenizer marks a piece that goes on with a word."""
    if any(piece.startswith("##") and len(piece) > 2 for piece in tokenizer.table):
        return lambda piece: piece.startswith("##") and len(piece) > 2
    begins = BLANKS if tokenizer.byte_level else (SPACE,)
    if not any(piece.startswith(begins) for piece in tokenizer.table):
        return lambda piece: False
    return lambda piece: not piece.startswith(begins) and any(map(str.isalnum, piece))


def with_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a <mask>, which puts <s> before a text, </s> behind it and between two.

    A <mask> in a text hides a word; other special tokens that are typed stay text.
    """
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    inner.add_tokens([AddedToken(MASKS[1], special=False, normalized=False)])
    begin, end = (tokenizer.name(token) for token in (tokenizer.begin, tokenizer.end))
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(begin, tokenizer.begin), (end, tokenizer.end)],
    )
    made = Tokenizer(inner, tokenizer.ids, tokenizer.literal)
    made.settings = {**tokenizer.settings, "mask_token": MASKS[1], "cls_token": begin, "sep_token": end}
    return made
