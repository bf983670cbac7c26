"""Targets of classification and regression, by problem type: as tokens of a dataset, and as a tensor.

single_label   [3]            (batch)            the label's index
multi_label    [1, 4] or [0]  (batch, labels)    each label's index + 1, or none; 1.0 where it holds
regression     [1078530011]   (batch)            the bits of a 32-bit float
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.files import Record
from regard.errors import UserError, listed


class Labelled(Protocol):
    """A prepared dataset with targets."""

    target_values: Any  # all targets' tokens, end to end

    def __len__(self) -> int: ...


class SingleLabelTargets:
    """One label per text."""

    json_types: ClassVar[tuple[type, ...]] = (int,)  # of a label in JSON, besides text
    first_token: ClassVar[int] = 0  # of the first label

    def __init__(self, labels: Sequence[str]):
        self.size = len(labels)
        self.table = {label: index for index, label in enumerate(labels)}

    @staticmethod
    def parse(field: str, clean: Callable[[str], str], separator: str, location: str) -> str:
        """A field of a file as the target of a record; each label is cleaned."""
        return clean(field)

    @staticmethod
    def labels_of(target: str) -> list[str]:
        """The labels in a record's target."""
        return [target] if target else []

    def encode_many(self, targets: list[str]) -> list[list[int]]:
        return [[self.table[target]] for target in targets]

    def content(self) -> str:
        return json.dumps(list(self.table))

    def check(self, record: Record) -> None:
        """Reject a label that the model does not know, with its location."""
        for label in self.labels_of(record.target):
            if label not in self.table:
                raise UserError(
                    f"{record.location}: unknown label {label!r}; the model was trained with: {listed(self.table)}; "
                    "correct it, or fine-tune a new head: model.new_head=true"
                )

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.array([int(row[0]) for row in rows]))

    def counts(self, dataset: Labelled) -> np.ndarray:
        """How many samples have each label."""
        tokens = np.asarray(dataset.target_values, int)
        return np.bincount(tokens, minlength=self.size + self.first_token)[self.first_token :]

    def balanced_weights(self, dataset: Labelled) -> Tensor:
        """For each label samples ÷ (labels × its samples), so that all have the same total; 0 without a sample."""
        counts = self.counts(dataset)
        weights = len(dataset) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return torch.tensor(np.where(counts > 0, weights, 0.0), dtype=torch.float32)


class MultiLabelTargets(SingleLabelTargets):
    """Any number of labels per text; a record has them as a JSON list."""

    json_types = (int, list)
    first_token = 1

    @staticmethod
    def parse(field: str, clean: Callable[[str], str], separator: str, location: str) -> str:
        labels = field.split(separator)
        if field.startswith("["):
            try:
                labels = json.loads(field)
            except (ValueError, RecursionError):
                labels = None
            if not isinstance(labels, list) or not all(isinstance(each, str) or type(each) is int for each in labels):
                raise UserError(
                    f'{location}: label {field:.60}: expected a JSON list of labels, such as ["sport", "money"]'
                )
        distinct = dict.fromkeys(clean(str(label)) for label in labels)
        return json.dumps([label for label in distinct if label], ensure_ascii=False)

    @staticmethod
    def labels_of(target: str) -> list[str]:
        return json.loads(target) if target else []

    def encode_many(self, targets: list[str]) -> list[list[int]]:
        return [[self.table[label] + 1 for label in json.loads(target)] or [0] for target in targets]

    def content(self) -> str:
        return f"several {super().content()}"

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        holds = np.zeros((len(rows), self.size + 1), np.float32)
        for index, row in enumerate(rows):
            holds[index, row.astype(int)] = 1
        return torch.from_numpy(holds[:, 1:].copy())

    def balanced_weights(self, dataset: Labelled) -> Tensor:
        """For each label the texts without it ÷ those with it: the weight of a text that has it."""
        counts = self.counts(dataset)
        weights = (len(dataset) - counts) / np.maximum(counts, 1)
        return torch.tensor(np.where(counts > 0, weights, 0.0), dtype=torch.float32)


class RegressionTargets(SingleLabelTargets):
    """A number per text, stored as its bits; there are no labels to count."""

    json_types = (int, float)

    def __init__(self, labels: Sequence[str] = ()):
        super().__init__(labels)
        self.size = 1 << 32

    def encode_many(self, targets: list[str]) -> list[list[int]]:
        return [[int(bits)] for bits in np.array([float(target) for target in targets], np.float32).view(np.uint32)]

    def content(self) -> str:
        return "numbers"

    def check(self, record: Record) -> None:
        try:
            finite = math.isfinite(np.float32(record.target))
        except ValueError:
            finite = False
        if not finite:
            raise UserError(
                f"{record.location}: label {record.target!r}: data.problem_type = 'regression' needs numbers; "
                "for classes, set data.problem_type = 'single_label'"
            )

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.array([int(row[0]) for row in rows], np.uint32).view(np.float32))

    def values(self, dataset: Labelled) -> np.ndarray:
        """The numbers of all samples."""
        return np.asarray(dataset.target_values).view(np.float32)


Targets = SingleLabelTargets  # of any problem type

TARGETS: Mapping[str, type[Targets]] = {
    "single_label": SingleLabelTargets,
    "multi_label": MultiLabelTargets,
    "regression": RegressionTargets,
}


def targets_of(problem_type: str, labels: Sequence[str] = ()) -> Targets:
    """The targets of `data.problem_type`."""
    return TARGETS[problem_type](labels)


def validated(records: Iterable[Record], targets: Targets) -> Iterator[Record]:
    """The records; an invalid target is an error that names its location."""
    for record in records:
        if record.target and not record.left_out:
            targets.check(record)
        yield record
