"""Batches of windows, their span logits and loss, and the best spans of a question. Devlin et al. 2019, section 4.2."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.inputs import TokenBatch
from regard.layers.pytree import to_device
from regard.models.heads.token import SpanClassifier
from regard.tasks.answer.spans import Candidates, WindowLogits, best_of
from regard.tasks.answer.windows import ABSENT, Windows
from regard.tasks.batching import encode_batches
from regard.text.special_tokens import padded

BATCH = 32  # default number of windows per batch

MAX_WINDOW = 384  # default length of a window in tokens, if the network's context is as long


class QABatch(NamedTuple):
    """Windows as input of the network, and the positions of the answers in their rows."""

    text: TokenBatch
    first: Tensor  # (batch): position of the answer's first token; 0 if the window does not contain it
    last: Tensor  # (batch)
    context: Tensor  # (batch, 2): begin and end of the window's passage tokens
    indices: Tensor  # (batch): the windows' indices

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


def mask_logits(logits: Tensor, batch: QABatch) -> Tensor:
    """Logits of [CLS] and the window's passage tokens; −∞ at the question, the separators and padding."""
    positions = torch.arange(logits.shape[1], device=logits.device)
    valid = (positions >= batch.context[:, :1]) & (positions < batch.context[:, 1:])
    valid[:, 0] = True
    return logits.float().masked_fill(~valid[:, :, None], float("-inf"))


def span_loss(logits: Tensor, batch: QABatch, smoothing: float = 0.0) -> Tensor:
    """The mean of the cross-entropies of the first and of the last token, summed over the windows."""
    first = _cross_entropy(logits[:, :, 0], batch.first, smoothing)
    last = _cross_entropy(logits[:, :, 1], batch.last, smoothing)
    return (first + last) / 2


def _cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Summed cross-entropy; label smoothing is spread over the positions that are not masked."""
    hard = F.cross_entropy(logits, target, reduction="sum")
    if not smoothing:
        return hard
    valid = logits.isfinite()
    uniform = -(logits.log_softmax(1).masked_fill(~valid, 0.0).sum(1) / valid.sum(1)).sum()
    return (1 - smoothing) * hard + smoothing * uniform


@torch.no_grad()
def score_windows(
    network: SpanClassifier,
    windows: Windows,
    indices: Sequence[int],
    batch_size: int = BATCH,
    on_loss: Callable[[float], None] = lambda loss: None,
) -> dict[int, WindowLogits]:
    """The logits of windows by index, computed in batches of similar length. `on_loss` gets the loss of each batch."""
    scored: dict[int, WindowLogits] = {}

    def encode(rows: list[int]) -> tuple[QABatch, Tensor]:
        batch = collate(windows, [indices[row] for row in rows]).to(next(network.parameters()).device)
        return batch, mask_logits(network(batch.text), batch)

    lengths = [int(windows.lengths[index]) for index in indices]
    for _, (batch, logits) in encode_batches(network, lengths, batch_size, encode):
        on_loss(float(span_loss(logits, batch)))
        rows = zip(batch.indices.tolist(), logits.cpu().numpy(), batch.context.tolist(), strict=True)
        for index, row, (begin, end) in rows:
            scored[index] = WindowLogits(row[:, 0], row[:, 1], begin, end, windows.window(index).begin)
    return scored


def find_spans(
    network: SpanClassifier,
    windows: Windows,
    questions: Sequence[int],
    batch_size: int = BATCH,
    choose: Callable[[Iterable[WindowLogits]], Candidates] = best_of,
    on_loss: Callable[[float], None] = lambda loss: None,
) -> list[Candidates]:
    """The candidate answers to each of these questions, best first."""
    indices = [index for question in questions for index in windows.windows_of(question)]
    scored = score_windows(network, windows, indices, batch_size, on_loss)
    return [choose(scored[index] for index in windows.windows_of(question)) for question in questions]
