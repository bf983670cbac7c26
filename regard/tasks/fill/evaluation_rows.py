"""The rows on which a masked language model is validated and evaluated: the same masks each time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regard.data.token_stream import TokenStream
from regard.tasks.fill.batches import MaskedBatch, MaskOptions, masked_rows, pair_budget, rows_per_epoch
from regard.tasks.fill.options import FillData
from regard.tasks.fill.sentences import SentenceDataset, prepare_sentences, prepare_stream
from regard.text.tokenizer import Tokenizer

ROWS = 32  # of a batch
SEED = 1  # of the masks


def prepare_split(
    data: FillData, split: str, tokenizer: Tokenizer, cache: Path, length: int, base_dir: Path
) -> TokenStream | SentenceDataset:
    """A split as a token stream, or as sentences where pairs are drawn."""
    if data.pair_task == "none":
        return prepare_stream(data, split, tokenizer, cache, base_dir)
    return prepare_sentences(data, split, tokenizer, cache, pair_budget(tokenizer, length), base_dir)


def fixed_rows(
    split: TokenStream | SentenceDataset, tokenizer: Tokenizer, options: MaskOptions, limit: int
) -> Iterator[MaskedBatch]:
    """At most `limit` rows of a split, always with the same masks."""
    count = min(limit, rows_per_epoch(split, tokenizer, options))
    batches = masked_rows(split, tokenizer, replace(options, batch_size=ROWS, seed=SEED))
    for done in range(0, count, ROWS):
        yield next(batches).rows(slice(count - done))
