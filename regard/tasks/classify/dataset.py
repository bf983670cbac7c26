"""Labelled text: texts or pairs as rows of tokens, the prepared dataset, and batches of it.

    text        [what its tokenizer puts before a text]  text  end
    two texts   […]  text  end  text_pair  end

The label is the target, and its one token is its index. Other tools that open the tokenizer add the same tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.cache import Report, options_key
from regard.data.files import hash_files
from regard.data.pairs import PairDataset, prepare_pairs
from regard.data.splits.hashed import file_of
from regard.data.targets import Targets, validated
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.layers.pytree import to_device
from regard.tasks.classify.files import PAIR_SEPARATOR, read_all
from regard.tasks.classify.options import ClassifyData
from regard.text.special_tokens import SpecialTokens, special_tokens_of
from regard.text.tokenizer import Tokenizer

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
        rows = [encoding.ids for encoding in self.tokenizer.inner.encode_batch_fast(list(texts))]  # type: ignore[arg-type]
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
        if not self.paired or len({*self._frame.text_segments}) < 2 or not self._frame.specials[1]:
            return text
        return text._replace(segments=pad([self._segments(row) for row in rows], 0).tokens)

    def _segments(self, row: Ids) -> np.ndarray:
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


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class LabelledBatch(NamedTuple):
    """Texts and the indices of their labels."""

    text: TokenBatch
    labels: Tensor  # (batch), of multi-label texts (batch, labels)
    indices: Tensor  # (batch): the samples' indices in the dataset

    def to(self, device: torch.device | str) -> "LabelledBatch":
        return to_device(self, device)


def collate(dataset: PairDataset, indices: Sequence[int], encoders: Encoders) -> LabelledBatch:
    """These samples as one batch."""
    labels = encoders.target.tensor([dataset.target(index) for index in indices])
    text = encoders.source.sequences([dataset.source(index) for index in indices])
    return LabelledBatch(text, labels, torch.tensor(list(indices), dtype=torch.int64))
