"""Texts as the rows of tokens that an encoder takes, single or in pairs, and their traces."""

from collections.abc import Sequence
from typing import Any

import torch

from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, Trace
from regard.errors import UserError
from regard.layers.inputs import TokenBatch, pad
from regard.layers.protocols import EncoderModel
from regard.tasks.batching import EncodedText, check_texts, too_long
from regard.tasks.predictor import Options, Predictor
from regard.text.tokenizer import Tokenizer

Text = str | tuple[str, str]


class EncoderPredictor(Predictor):
    """A predictor of encoders: their inputs are texts, or pairs of texts, with the tokenizer's special tokens."""

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        texts = [split_pair(text, getattr(self.network, "paired", False)) for text in texts]
        return encode_texts(self.tokenizer, texts, self.network.max_positions, truncate)

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        (row,) = self.encode_inputs([value], truncate)
        return trace_encoder(self.network, self.tokenizer, row, prove)


def split_pair(text: Any, paired: bool | None) -> Any:
    """One text, or two: a pair as it is, or a line with a tab where pairs are, or may be (None), expected."""
    if isinstance(text, str):
        return tuple(text.split("\t", 1)) if paired or (paired is None and "\t" in text) else text
    return tuple(text) if isinstance(text, list | tuple) else text


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[Text], max_positions: int, truncate: bool = False
) -> list[EncodedText]:
    """Texts as rows; the second text of a pair has token type 1 if the tokenizer has token types."""
    check_texts(texts, pairs=True)
    rows = []
    for index, (text, encoding) in enumerate(zip(texts, tokenizer.encodings(texts), strict=True)):
        ids = list(encoding.ids)
        types = list(encoding.type_ids)
        excess = len(ids) - max_positions
        if not ids:
            raise UserError("is empty: there is nothing to encode", index)
        if excess > 0 and not truncate:
            raise too_long(text, len(ids), max_positions, index)
        if excess > 0:
            special = encoding.special_tokens_mask
            suffix = next((count for count, mark in enumerate(reversed(special)) if not mark), 0)
            keep = [*range(max_positions - suffix), *range(len(ids) - suffix, len(ids))]
            ids = [ids[position] for position in keep]
            types = [types[position] for position in keep]
        rows.append(EncodedText(ids, types, excess > 0))
    return rows


def collate(rows: Sequence[EncodedText], padding: int = 0) -> TokenBatch:
    """Rows as one batch."""
    text = pad([row.tokens for row in rows], padding)
    if not any(any(row.segments) for row in rows):
        return text
    return text._replace(segments=pad([row.segments for row in rows], 0).tokens)


@torch.no_grad()
def trace_encoder(network: EncoderModel, tokenizer: Tokenizer, row: EncodedText, prove: bool = False) -> Trace:
    """The attention of an encoder to a text."""
    text = collate([row]).to(next(network.parameters()).device)
    with record(prove) as recorder:
        network.encode(text)
    return Trace(recorder, Axes.encoder(Axis(tokenizer.pieces(row.tokens)), ""))
