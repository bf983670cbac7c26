"""Span logits of windows, their loss, and the best spans of each question. Devlin et al. 2019, section 4.2."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.tasks.answer.batches import QABatch, collate
from regard.tasks.answer.spans import Found, Seen, best_of
from regard.tasks.answer.windows import Windows
from regard.tasks.batching import encode_batches

BATCH = 32  # windows that are read at once where nobody says how many

MAX_WINDOW = 384  # tokens of a window where nobody says, and the network reads as many


def possible(logits: Tensor, batch: QABatch) -> Tensor:
    """Logits of where an answer may stand, the window's text and [CLS]; −∞ of the question, the marks and padding."""
    places = torch.arange(logits.shape[1], device=logits.device)
    inside = (places >= batch.context[:, :1]) & (places < batch.context[:, 1:])
    inside[:, 0] = True
    return logits.float().masked_fill(~inside[:, :, None], float("-inf"))


def span_loss(logits: Tensor, batch: QABatch, smoothing: float = 0.0) -> Tensor:
    first, last = (
        _cross_entropy(logits[:, :, side], wanted, smoothing) for side, wanted in enumerate((batch.first, batch.last))
    )
    return (first + last) / 2


def _cross_entropy(logits: Tensor, wanted: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy, summed; what smoothing takes from the right place, all that are possible share."""
    hard = F.cross_entropy(logits, wanted, reduction="sum")
    if not smoothing:
        return hard
    supports = logits.isfinite()
    even = -(logits.log_softmax(1).masked_fill(~supports, 0.0).sum(1) / supports.sum(1)).sum()
    return (1 - smoothing) * hard + smoothing * even


@torch.no_grad()
def score_windows(
    network: Any,
    windows: Windows,
    numbers: Sequence[int],
    batch_size: int = BATCH,
    on_loss: Callable[[float], None] = lambda loss: None,
) -> dict[int, Seen]:
    """What a network says of windows, by their numbers; read in batches of like length. `told` hears their losses."""
    seen: dict[int, Seen] = {}

    def read(some: list[int]) -> tuple[QABatch, Tensor]:
        batch = collate(windows, [numbers[each] for each in some]).to(next(network.parameters()).device)
        return batch, possible(network(batch.text), batch)

    lengths = [int(windows.lengths[number]) for number in numbers]
    for _, (batch, logits) in encode_batches(network, lengths, batch_size, read):
        on_loss(float(span_loss(logits, batch)))
        places = zip(batch.index.tolist(), logits.cpu().numpy(), batch.context.tolist(), strict=True)
        for number, each, (begin, end) in places:
            seen[number] = Seen(each[:, 0], each[:, 1], begin, end, windows.window(number).begin)
    return seen


def find_spans(
    network: Any,
    windows: Windows,
    questions: Sequence[int],
    batch_size: int = BATCH,
    choose: Callable[[Iterable[Seen]], Found] = best_of,
    on_loss: Callable[[float], None] = lambda loss: None,
) -> list[Found]:
    """What each of these questions may have for an answer, best first."""
    numbers = [number for question in questions for number in windows.windows_of(question)]
    seen = score_windows(network, windows, numbers, batch_size, on_loss)
    return [choose(seen[number] for number in windows.windows_of(question)) for question in questions]
