"""Batches of windows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.sampler import BatchOptions, shares
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import to_device
from regard.tasks.answer.windows import ABSENT, Windows
from regard.text.special_tokens import padded


class QABatch(NamedTuple):
    """Windows as input of the network, and the positions of the answers in their rows."""

    text: TokenBatch
    first: Tensor  # (batch): position of the answer's first token; 0 if the window does not contain it
    last: Tensor  # (batch)
    context: Tensor  # (batch, 2): begin and end of the window's passage tokens
    index: Tensor  # (batch): the windows' indices

    def to(self, device: torch.device | str) -> "QABatch":
        return to_device(self, device)


def collate(dataset: Windows, indices: Sequence[int]) -> QABatch:
    """These windows as one batch."""
    rows = [dataset.row(index) for index in indices]
    context = []
    answers = []
    for index, row in zip(indices, rows, strict=True):
        window = dataset.window(index)
        begin = row.begins[1]
        offset = begin - window.begin
        context.append([begin, offset + window.end])
        answers.append((0, 0) if window.first == ABSENT else (offset + window.first, offset + window.last))
    first, last = torch.tensor(answers, dtype=torch.int64).T
    return QABatch(padded(rows, dataset.padding), first, last, torch.tensor(context), torch.tensor(list(indices)))


def stream(dataset: Windows, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[QABatch]:
    """Endless batches, from batch `start` of this rank; its k-th is batch k·world + rank overall."""
    for indices in shares(dataset, options, start, rank, world):
        yield collate(dataset, indices)
