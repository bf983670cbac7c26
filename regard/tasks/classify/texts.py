"""Labelled text: texts or pairs as rows of tokens, the prepared dataset, and batches of it.

    text        [what its tokenizer puts before a text]  text  end
    two texts   […]  text  end  text_pair  end

The label is the target, and its one token is its index. Other tools that open the tokenizer add the same tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.attention.recording import Recorder
from regard.attention.trace import Axes, Axis, SegmentedTrace, Trace
from regard.config.recipe import Recipe
from regard.data.cache import Report, options_key
from regard.data.files import hash_files
from regard.data.pairs import PairDataset, prepare_pairs
from regard.data.splits.hashed import file_of
from regard.data.targets import Targets, validated
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.models.heads.hierarchical import Documents
from regard.models.registry import FAMILIES, family_of
from regard.tasks import encoding
from regard.tasks.base import train_shared_tokenizer
from regard.tasks.batching import EncodedText, check_texts, show_text, too_long
from regard.tasks.classify.files import PAIR_SEPARATOR, TextTable, read, read_all
from regard.tasks.classify.modality import AUDIO_OPTIONS, IMAGE_AUGMENTATION, Modality
from regard.tasks.classify.options import ClassifyData
from regard.tasks.classify.text_head import attach_head
from regard.tasks.inspection import Findings, inspect_coverage, inspect_leaks, inspect_lengths
from regard.tasks.predictor import RunInput
from regard.text.special_tokens import SpecialTokens, special_tokens_of
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Vocabulary

UNPREPARED = ("max_length", "segment_length", "stride")  # options of the network; they do not change what is prepared


def split_pair(text: str, paired: bool) -> str | tuple[str, ...]:
    """A text as a dataset stores it, or the two that it stores as one."""
    return tuple(text.split(PAIR_SEPARATOR, 1)) if paired else text


@dataclass(frozen=True)
class PairEncoder:
    """Encodes texts, or pairs of them, as the rows of tokens that a network reads."""

    tokenizer: Tokenizer
    paired: bool = False

    @property
    def size(self) -> int:
        return self.tokenizer.size

    @property
    def table(self) -> Mapping[str, int]:
        return self.tokenizer.table

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return self.rows([split_pair(text, self.paired) for text in texts])

    def rows(self, texts: Sequence[str | tuple[str, ...]]) -> list[list[int]]:
        """The tokens of each text with the tokenizer's special tokens, without its padding."""
        rows = [encoding.ids for encoding in self.tokenizer.encodings(texts, offsets=False)]
        for row in rows:
            while len(row) > 1 and row[-1] == self.tokenizer.pad:
                row.pop()
        return rows

    def truncate(self, row: list[int], length: int) -> list[int]:
        """At most `length` tokens of a row; an end token stays the last one."""
        if len(row) <= length:
            return row
        suffix = [self.tokenizer.end] if row[-1] == self.tokenizer.end else []
        return row[: length - len(suffix)] + suffix

    def sequences(self, rows: Sequence[Ids]) -> TokenBatch:
        """Rows as one batch; of pairs with their segments, if the tokenizer distinguishes them."""
        text = pad(rows, 0)
        if not self.has_segments:
            return text
        return text._replace(segments=pad([self.segments(row) for row in rows], 0).tokens)

    @property
    def has_segments(self) -> bool:
        """Whether the two texts of a pair have different token types."""
        return self.paired and len({*self._frame.text_segments}) > 1 and bool(self._frame.specials[1])

    def segments(self, row: Ids) -> np.ndarray:
        """The token type of each token of a pair."""
        first, middle, _ = self._frame.specials
        tokens = np.asarray(row)
        separators = np.flatnonzero(tokens[len(first) :] == middle[0])
        begin = len(first) + int(separators[0]) + len(middle) if len(separators) else len(tokens)
        return np.where(np.arange(len(tokens)) < begin, *self._frame.text_segments)

    @cached_property
    def _frame(self) -> SpecialTokens:
        return special_tokens_of(self.tokenizer, 2)

    def content(self) -> str:
        return f"{self.tokenizer.content()} enclosed {self.paired}"


class Encoders(NamedTuple):
    """The encoders of texts and of labels."""

    source: PairEncoder
    target: Targets


def prepare(
    data: ClassifyData, split: str, encoders: Encoders, cache: Path, max_length: int, base_dir: Path | None = None
) -> PairDataset:
    """A split as a PairDataset, from the cache if the same files, options, tokenizer and labels were prepared."""
    hashes = hash_files(file_of(data, split, base_dir))
    key = ["labels", options_key(data, split, UNPREPARED), json.dumps(hashes)]
    records = validated(read_all(data, split, base_dir), encoders.target)
    truncate = encoders.source.truncate if data.truncate else None
    return prepare_pairs(records, key, encoders, cache, max_length, Report(), hashes, truncate)


class Texts(Modality):
    """Texts, or pairs of texts."""

    unit = "texts"
    columns = ("text",)
    other_options = ("data.image", *IMAGE_AUGMENTATION, *AUDIO_OPTIONS)
    locate = TextTable.locate
    files = TextTable.files
    records = TextTable.records

    @classmethod
    def attach_head(cls, loaded: Loaded, recipe: Recipe) -> Loaded:
        return attach_head(loaded, recipe)

    @classmethod
    def create_processor(cls, recipe: Recipe) -> Vocabulary:
        records = read(ClassifyData.of(recipe), "train", Path(recipe.origin))
        texts = (text for record in records for text in record.source.split(PAIR_SEPARATOR))
        return train_shared_tokenizer(texts, recipe)

    @cached_property
    def encoder(self) -> PairEncoder:
        """The encoder of texts or pairs."""
        return PairEncoder(self.processor.target, bool(self.network.paired))

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, split: str, targets: Targets, cache: Path, max_length: int) -> PairDataset:
        assert self.recipe is not None
        return prepare(self.data, split, Encoders(self.encoder, targets), cache, max_length, Path(self.recipe.origin))

    def collate(self, dataset: PairDataset, indices: Sequence[int], epoch: int | None = None) -> TokenBatch:
        return self.encoder.sequences([dataset.source(index) for index in indices])

    def inspect(self, splits: Mapping[str, PairDataset], findings: Findings) -> None:
        inspect_lengths(splits, findings)
        inspect_coverage(splits, self.processor, ("source",), findings)
        inspect_leaks(splits, findings)

    # ── prediction ───────────────────────────────────────────────────────────────────────────────────────────────────

    def value(self, source: str) -> str | tuple[str, ...]:
        return split_pair(source, bool(self.data.text_pair))

    def is_empty(self, value: Any) -> bool:
        texts = value if isinstance(value, list | tuple) else [value]
        return all(isinstance(text, str) and not text.strip() for text in texts)

    def encode(self, values: Sequence[Any], truncate: bool = False) -> list[EncodedText]:
        """A longer text than the network reads is an error, or truncated before its end token."""
        encoder = self.encoder
        pairs = [encoding.split_pair(value, self.network.paired) for value in values]
        for index, text in enumerate(pairs):
            if encoder.paired and (not isinstance(text, tuple) or len(text) != 2):
                raise UserError("should be two texts, separated by a tab: this model was trained on pairs", index)
            if self.network.paired is False and isinstance(text, tuple):
                raise UserError("is two texts: this model was trained on single ones", index)
        check_texts(pairs, pairs=True)
        for index, text in enumerate(pairs):
            if not "".join(text).strip():
                raise UserError("is empty: there is nothing to classify", index)
        rows = encoder.rows(pairs)
        limit = self.network.max_positions
        for index, (text, row) in enumerate(zip(pairs, rows, strict=True)):
            if len(row) > limit and not truncate:
                raise too_long(text, len(row), limit, index)
        encoder = replace(encoder, paired=any(not isinstance(text, str) for text in pairs))
        encoded = []
        for row in rows:
            tokens = encoder.truncate(row, limit)
            segments = encoder.segments(tokens).tolist() if encoder.has_segments else ()
            encoded.append(EncodedText(tokens, segments, len(row) > limit))
        return encoded

    def lengths(self, rows: Sequence[EncodedText]) -> list[int]:
        return [len(row.tokens) for row in rows]

    def batch(self, rows: Sequence[EncodedText]) -> TokenBatch:
        return encoding.collate(rows)

    def trace(self, recorder: Recorder, row: EncodedText, answer: str) -> Trace:
        """Of an encoder also the attention of its pooling."""
        tokenizer = self.processor.target
        source = Axis(tokenizer.pieces(row.tokens))
        if not FAMILIES[family_of(self.network)].is_encoder:
            return Trace(recorder, Axes.causal(source, source), answer)
        if isinstance(self.network, Documents):
            segments = self.network.split_into_segments(self.batch([row])).text
            lengths = segments.lengths.tolist()
            rows = [tokens[:length] for tokens, length in zip(segments.tokens.tolist(), lengths, strict=True)]
            return SegmentedTrace(recorder, [Axis(tokenizer.pieces(tokens)) for tokens in rows], source, answer)
        return Trace(recorder, Axes.encoder(source, answer), answer)

    def second_column(self, requested: str) -> str | None:
        if requested and self.network.paired is False:
            return None
        return requested or (self.data.text_pair or "text_pair" if self.network.paired else "")

    def parse_row(self, text: str, second: str | None, location: str) -> RunInput:
        if second is None and self.network.paired is None:
            text = text.replace("\t", " ")  # a tab would separate two texts
        return super().parse_row(text, second, location)

    def show(self, value: Any) -> str:
        return show_text(value)
