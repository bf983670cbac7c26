"""Labelled text: one or two texts and what they are called, read from files and prepared once into a Corpus.

    text        [what its tokenizer puts before a text]  text  end
    two texts   […]  text  end  text2  end

The label is the target, and its one token is its number. Others that open the tokenizer put the same round a text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tokenizers
import torch
from tokenizers import processors
from torch import Tensor

from regard.errors import UserError
from regard.inputs.arrays import Corpus, cached
from regard.inputs.batch import BatchOptions, Sequences, order, pad
from regard.inputs.files import Record, expand, rows
from regard.inputs.parts import file_of, fractions, own_file, part_of
from regard.inputs.prepared import hash_file
from regard.inputs.text import MISSING, Tokenizer

if TYPE_CHECKING:
    from regard.recipe import DataOptions

BETWEEN = "\x1e"  # stands between two texts where they are kept as one
MOST = 10_000  # labels; more are surely another column


def read(data: "DataOptions", part: str, beside: Path | None = None) -> Iterator[Record]:
    """Every sample of a part in the order of its file: its text is the source, its label the target."""
    path, own, held_out = file_of(data, part, beside), own_file(data, part), fractions(data)
    text, label = data.text or "text", data.label or "label"
    group = "" if data.split_by in ("source", text) else data.split_by
    asked = [text, label, *(name for name in (data.text2, group) if name)]
    for fields, place in rows(path, data.columns, tuple(asked), numbers=(label,)):
        texts = fields[text]
        if data.text2:
            texts = f"{texts.replace(BETWEEN, ' ')}{BETWEEN}{fields[data.text2]}"
        called = fields[label].split(data.label_until)[0] if data.label_until else fields[label]
        record = Record(texts, called.strip(), "", fields[group] if group else texts, place)
        if own or part_of(record.group, *held_out) == part:
            yield record


def learn_labels(data: "DataOptions", beside: Path | None = None) -> tuple[str, ...]:
    """Every label of the training part, in the order of their letters."""
    found: set[str] = set()
    for record in read(data, "train", beside):
        if record.target and record.target not in found:
            found.add(record.target)
            if len(found) > MOST:
                raise UserError(
                    f"{record.place}: over {MOST:,} different labels so far; is data.label the right column?"
                )
    if len(found) < 2:
        only = f"the one label {found.pop()!r}" if found else "no label"
        raise UserError(f"{file_of(data, 'train', beside)}: has {only}; to tell texts apart takes two")
    return tuple(sorted(found))


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def enclosed(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, whose own post-processor puts an end behind each text: the token that a label is told from.

    Padding must be another token than the end, since others find a text's last token by it.
    """
    if tokenizer.end == MISSING:
        raise UserError("the tokenizer has no token for 'end', behind which a label is told; name it as eos_token")
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    names = {token: inner.id_to_token(token) for token in (*tokenizer.head, tokenizer.end)}
    head, end = [names[token] for token in tokenizer.head], names[tokenizer.end]
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=[*head, "$A", end],
        pair=[*head, "$A", end, "$B:0", end],
        special_tokens=[(name, token) for token, name in names.items()],
    )
    others = (tokenizer.pad, tokenizer.unknown, tokenizer.begin, 0, 1)
    padding = next(token for token in others if token not in (MISSING, tokenizer.end))
    made = Tokenizer(inner, tokenizer.ids | {"pad": padding}, tokenizer.literal)
    said = ("add_bos_token", "add_eos_token")  # would speak over the post-processor
    made.settings = {key: value for key, value in tokenizer.settings.items() if key not in said}
    return made


@dataclass(frozen=True)
class Texts:
    """Texts, or pairs of them, as the rows of tokens that a network reads."""

    tokenizer: Tokenizer
    paired: bool = False

    @property
    def size(self) -> int:
        return self.tokenizer.size

    @property
    def table(self) -> Mapping[str, int]:
        return self.tokenizer.table

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return self.rows([self.apart(text) for text in texts])

    def apart(self, text: str) -> str | tuple[str, ...]:
        """A text as a Corpus keeps it, or the two that it keeps as one."""
        return tuple(text.split(BETWEEN, 1)) if self.paired else text

    def rows(self, texts: Sequence[str | tuple[str, ...]]) -> list[list[int]]:
        """What the tokenizer puts round a text is part of it; what it would pad with is not."""
        found = [each.ids for each in self.tokenizer.inner.encode_batch_fast(list(texts))]  # type: ignore[arg-type]
        return [self._unpadded(row) for row in found]

    def _unpadded(self, row: list[int]) -> list[int]:
        last = len(row)
        while last > 1 and row[last - 1] == self.tokenizer.pad:
            last -= 1
        return row[:last]

    def content(self) -> str:
        return f"{self.tokenizer.content()} enclosed {self.paired}"


class Labels:
    """Labels as tokens: each is its number."""

    def __init__(self, names: Sequence[str]):
        self.size, self.table = len(names), {name: number for number, name in enumerate(names)}

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [[self.table[text]] for text in texts]

    def content(self) -> str:
        return json.dumps(list(self.table))


class Sides(NamedTuple):
    """What makes tokens of texts, and of labels."""

    source: Texts
    target: Labels


def prepare(
    data: "DataOptions", part: str, sides: Sides, cache: Path, max_length: int, beside: Path | None = None
) -> Corpus:
    """A part of the data as a Corpus: found in the cache when the same files, options, tokenizer and labels were."""
    hashes = {name or path.name: hash_file(path) for name, path in expand(file_of(data, part, beside)).items()}
    options = [data.text, data.text2, data.label, data.label_until, data.columns, data.split_by]
    key = json.dumps(["labels", hashes, options, max_length, fractions(data), part])
    return cached(known(read(data, part, beside), sides.target), key, hashes, sides, cache, max_length)


def known(records: Iterator[Record], labels: Labels) -> Iterator[Record]:
    """The records; a label that training never showed is an error, with its place."""
    for record in records:
        if record.target and record.target not in labels.table:
            some = ", ".join([*islice(labels.table, 8), *(["…"] if labels.size > 8 else [])])
            raise UserError(f"{record.place}: the label {record.target!r} is none of those learnt from train: {some}")
        yield record


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Labelled(NamedTuple):
    """Texts and the numbers of their labels."""

    text: Sequences
    labels: Tensor  # (batch)
    index: Tensor  # (batch): the samples' numbers in the corpus

    def to(self, device: torch.device | str) -> "Labelled":
        return Labelled(self.text.to(device), self.labels.to(device), self.index.to(device))


def collate(corpus: Corpus, numbers: Sequence[int]) -> Labelled:
    """These samples as one batch."""
    labels = np.array([int(corpus.target(number)[0]) for number in numbers])
    text = pad([corpus.source(number) for number in numbers], 0)
    return Labelled(text, torch.from_numpy(labels), torch.tensor(list(numbers), dtype=torch.int64))


def stream(corpus: Corpus, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[Labelled]:
    """Batches without end, from the rank's own number `start`: its k-th is batch k·world + rank of all."""
    for samples in islice(order(corpus, options).numbers(start * world), rank, None, world):
        yield collate(corpus, samples.tolist())
