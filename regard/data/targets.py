"""What a text is called, as the tokens of a PairDataset and as a tensor: one label, several, or a number.

one        [3]            (batch)            the label's number
several    [1, 4] or [0]  (batch, labels)    each label's number + 1, or none; 1.0 where it holds
number     [1078530011]   (batch)            the bits of a 32-bit float
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from regard.data.files import Record
from regard.data.pairs import PairDataset
from regard.errors import UserError


class Labels:
    """One label a text."""

    def __init__(self, names: Sequence[str]):
        self.size, self.table = len(names), {name: number for number, name in enumerate(names)}

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [[self.table[text]] for text in texts]

    def content(self) -> str:
        return json.dumps(list(self.table))

    def check(self, record: Record) -> None:
        """A label that training never showed is an error, with its location."""
        self._known(record.target, record.location)

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.array([int(row[0]) for row in rows]))

    def _known(self, label: str, location: str) -> None:
        if label not in self.table:
            some = ", ".join([*islice(self.table, 8), *(["…"] if self.size > 8 else [])])
            raise UserError(f"{location}: the label {label!r} is none of those that the model tells: {some}")


class LabelSets(Labels):
    """Several labels a text, or none; a record has them as a JSON list."""

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [[self.table[label] + 1 for label in json.loads(text)] or [0] for text in texts]

    def content(self) -> str:
        return f"several {super().content()}"

    def check(self, record: Record) -> None:
        for label in json.loads(record.target):
            self._known(label, record.location)

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        held = np.zeros((len(rows), self.size + 1), np.float32)
        for number, row in enumerate(rows):
            held[number, row.astype(int)] = 1
        return torch.from_numpy(held[:, 1:].copy())


class Numbers:
    """A number a text."""

    size, table = 1 << 32, dict[str, int]()

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [[int(bits)] for bits in np.array([float(text) for text in texts], np.float32).view(np.uint32)]

    def content(self) -> str:
        return "numbers"

    def check(self, record: Record) -> None:
        try:
            holds = math.isfinite(np.float32(record.target))
        except ValueError:
            holds = False
        if not holds:
            raise UserError(
                f"{record.location}: the label {record.target!r} is no number, but data.problem_type is 'regression' "
                "('single_label' takes words)"
            )

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.array([int(row[0]) for row in rows], np.uint32).view(np.float32))


Targets = Labels | LabelSets | Numbers

KINDS: Mapping[str, type[Labels]] = {"single_label": Labels, "multi_label": LabelSets}


def targets_of(kind: str, labels: Sequence[str] = ()) -> Targets:
    """What makes tokens of labels, by `data.problem_type`."""
    return Numbers() if kind == "regression" else KINDS[kind](labels)


def told_label(kept: str, kind: str) -> str:
    """A label as it is kept, for people."""
    return ", ".join(json.loads(kept)) if kind == "multi_label" else kept


def known(records: Iterable[Record], targets: Targets) -> Iterator[Record]:
    """The records; a label that cannot be one is an error, with its location."""
    for record in records:
        if record.target and not record.left_out:
            targets.check(record)
        yield record


def balanced_weights(corpus: PairDataset, targets: Labels) -> Tensor:
    """For each label samples ÷ (labels × its own samples): all count as much together; 0 for one without a sample.

    Of several labels a text each counts by itself: its weight is what a text that holds it counts for, as often as
    texts do not hold it.
    """
    counts = np.bincount(corpus.target_values, minlength=targets.size + 1).astype(float)
    if isinstance(targets, LabelSets):
        held = counts[1:]
        return torch.tensor(np.where(held > 0, (len(corpus) - held) / np.maximum(held, 1), 0.0), dtype=torch.float32)
    held = counts[: targets.size]
    share = len(corpus) / (np.count_nonzero(held) * np.maximum(held, 1))
    return torch.tensor(np.where(held > 0, share, 0.0), dtype=torch.float32)
