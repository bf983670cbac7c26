"""The special tokens around one text or two, their segments, and tokenizers with further special tokens.

    BERT        [CLS] question [SEP] text [SEP]         segments 0 … 0 1 … 1
    RoBERTa     <s> question </s> </s> text </s>        segments all 0

They are read off the tokenizer's own output for two short texts, so that texts may be split and joined as tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from regard.errors import UserError
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.text.tokenizer import MISSING, SHORT_TEXTS, Tokenizer, token_name
from regard.text.vocab_files import set_template

MASKS = ("[MASK]", "<mask>")


class FramedRow(NamedTuple):
    """A row of tokens with their segments, and where each of its texts begins in it."""

    tokens: np.ndarray
    segments: np.ndarray
    begins: tuple[int, ...]


class SpecialTokens(NamedTuple):
    """The special tokens before, between and after texts, with their segments, and the segment of each text."""

    specials: tuple[tuple[int, ...], ...]
    segments: tuple[tuple[int, ...], ...]  # of the specials
    text_segments: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many special tokens a row has."""
        return sum(map(len, self.specials))

    def wrap(self, *texts: Ids) -> FramedRow:
        """These texts, as tokens, with the special tokens around them."""
        tokens = [*self.specials[0]]
        segments = [*self.segments[0]]
        begins = []
        after = zip(texts, self.text_segments, self.specials[1:], self.segments[1:], strict=True)
        for text, text_segment, special, segment in after:
            begins.append(len(tokens))
            tokens += [*text, *special]
            segments += [text_segment] * len(text) + [*segment]
        return FramedRow(np.array(tokens), np.array(segments), tuple(begins))


def special_tokens_of(tokenizer: Tokenizer, texts: int = 2) -> SpecialTokens:
    """The special tokens that a tokenizer puts around one text or two."""
    for text in SHORT_TEXTS:
        (encoding,) = tokenizer.encodings([(text, text) if texts == 2 else text])
        if len({*encoding.sequence_ids} - {None}) == texts:
            break
    else:
        raise UserError(
            f"the tokenizer has no token for any of {', '.join(SHORT_TEXTS)}: its special tokens cannot be determined"
        )
    specials: list[list[int]] = [[] for _ in range(texts + 1)]
    segments: list[list[int]] = [[] for _ in range(texts + 1)]
    text_segments = [0] * texts
    texts_before = 0
    for token, segment, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if text is None:
            specials[texts_before].append(token)
            segments[texts_before].append(segment)
        else:
            text_segments[text] = segment
            texts_before = text + 1
    return SpecialTokens(tuple(map(tuple, specials)), tuple(map(tuple, segments)), tuple(text_segments))


def pair_frame(tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens around two texts; one must precede them, and one must separate them."""
    frame = special_tokens_of(tokenizer, 2)
    if not frame.specials[0] or not frame.specials[1]:
        raise UserError(
            "the tokenizer adds no special token before a text or between two texts; expected [CLS] … [SEP] … [SEP] as "
            "in BERT: set tokenizer.folder to the folder of an encoder"
        )
    return frame


def padded(rows: Sequence[FramedRow], padding: int) -> TokenBatch:
    """Rows as one tensor, with their segments."""
    tokens, lengths, _ = pad([row.tokens for row in rows], padding)
    return TokenBatch(tokens, lengths, pad([row.segments for row in rows], 0).tokens)


# ── mask and end tokens ──────────────────────────────────────────────────────────────────────────────────────────────


def mask_token_of(tokenizer: Tokenizer) -> int:
    """The mask token."""
    named = token_name(tokenizer.settings, "mask_token")
    for name in (named, *MASKS):
        if name in tokenizer.table:
            return tokenizer.table[name]
    raise UserError(
        f"the tokenizer has no mask token ({' or '.join(MASKS)}); set mask_token in its tokenizer_config.json"
    )


def with_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a <mask>, which puts <s> before a text, </s> after it and between two.

    A <mask> in a text is the mask token; other special tokens that are typed stay text.
    """
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    inner.add_tokens([AddedToken(MASKS[1], special=False, normalized=False)])
    begin, end = (tokenizer.name(token) for token in (tokenizer.begin, tokenizer.end))
    set_template(inner, begin, end)
    masking = Tokenizer(inner, tokenizer.ids, tokenizer.literal)
    masking.settings = {**tokenizer.settings, "mask_token": MASKS[1], "cls_token": begin, "sep_token": end}
    return masking


def with_end_token(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, whose own post-processor puts an end after each text: the token that is classified.

    Padding must be another token than the end, since other tools find a text's last token by it.
    """
    if tokenizer.end == MISSING:
        raise UserError(
            "classification with a decoder-only model needs an end-of-sequence token; set eos_token in "
            "tokenizer_config.json"
        )
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    names = {token: inner.id_to_token(token) for token in (*tokenizer.head, tokenizer.end)}
    head = [names[token] for token in tokenizer.head]
    end = names[tokenizer.end]
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=[*head, "$A", end],
        pair=[*head, "$A", end, "$B:0", end],
        special_tokens=[(name, token) for token, name in names.items()],
    )
    candidates = (tokenizer.pad, tokenizer.unknown, tokenizer.begin, 0, 1)
    padding = next(token for token in candidates if token not in (MISSING, tokenizer.end))
    ending = Tokenizer(inner, tokenizer.ids | {"pad": padding}, tokenizer.literal)
    overriding = ("add_bos_token", "add_eos_token")  # they would take precedence over the post-processor
    ending.settings = {key: value for key, value in tokenizer.settings.items() if key not in overriding}
    return ending
