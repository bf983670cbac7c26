"""What a tokenizer puts round one text or two, and the segments it gives them.

    BERT        [CLS] question [SEP] text [SEP]         segments 0 … 0 1 … 1
    RoBERTa     <s> question </s> </s> text </s>        segments all 0

It is found by the tokenizer's own work on two short texts, so that texts may be cut and joined as tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.errors import UserError
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.text.vocabulary import Tokenizer

SHORT = ("a", "A", "0", ".")  # texts of which a vocabulary surely has one


class FramedRow(NamedTuple):
    """A row of tokens with their segments, and where each of its texts begins in it."""

    tokens: np.ndarray
    segments: np.ndarray
    begins: tuple[int, ...]


class SpecialTokens(NamedTuple):
    """The special tokens before, between and behind texts, with their segments, and the segment of each text."""

    specials: tuple[tuple[int, ...], ...]
    segments: tuple[tuple[int, ...], ...]  # of the specials
    kinds: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many tokens of a row are none of a text's."""
        return sum(map(len, self.specials))

    def place(self, *texts: Ids) -> FramedRow:
        """These texts, as tokens, in the frame."""
        tokens, segments, begins = [*self.specials[0]], [*self.segments[0]], []
        for text, kind, special, segment in zip(texts, self.kinds, self.specials[1:], self.segments[1:], strict=True):
            begins.append(len(tokens))
            tokens += [*text, *special]
            segments += [kind] * len(text) + [*segment]
        return FramedRow(np.array(tokens), np.array(segments), tuple(begins))


def special_tokens_of(tokenizer: Tokenizer, texts: int = 2) -> SpecialTokens:
    """The frame that a tokenizer puts round so many texts."""
    for text in SHORT:
        encoded = tokenizer.inner.encode(text, text if texts == 2 else None)
        if len({*encoded.sequence_ids} - {None}) == texts:
            return _frame(encoded.ids, encoded.type_ids, encoded.sequence_ids, texts)
    raise UserError(f"the tokenizer knows none of {', '.join(SHORT)}: how it joins texts cannot be told")


def _frame(ids: list[int], types: list[int], owners: list[int | None], texts: int) -> SpecialTokens:
    specials: list[list[int]] = [[] for _ in range(texts + 1)]
    segments: list[list[int]] = [[] for _ in range(texts + 1)]
    kinds, seen = [0] * texts, 0
    for token, kind, owner in zip(ids, types, owners, strict=True):
        if owner is None:
            specials[seen].append(token)
            segments[seen].append(kind)
        else:
            kinds[owner], seen = kind, owner + 1
    return SpecialTokens(tuple(map(tuple, specials)), tuple(map(tuple, segments)), tuple(kinds))


def pair_frame(tokenizer: Tokenizer) -> SpecialTokens:
    """The frame of two texts; it must begin with a token and hold the texts apart."""
    frame = special_tokens_of(tokenizer, 2)
    if not frame.specials[0] or not frame.specials[1]:
        raise UserError(
            "the tokenizer puts no token before a text, or none between two, as [CLS] … [SEP] … [SEP] does: "
            "take that of an encoder such as BERT"
        )
    return frame


def padded(rows: Sequence[FramedRow], padding: int) -> TokenBatch:
    """Rows as one tensor, with their segments."""
    tokens, lengths, _ = pad([row.tokens for row in rows], padding)
    return TokenBatch(tokens, lengths, pad([row.segments for row in rows], 0).tokens)
