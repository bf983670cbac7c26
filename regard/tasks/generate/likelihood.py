"""How likely a language model finds texts: the figure of pre-training, and how options are compared.

Shapes: tokens (batch, length), padded behind; log probabilities (batch, length − 1): of each token but the first.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.packing import windows
from regard.data.token_stream import TokenStream
from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import pad

PLACES = 2048  # whose logits are made at once: those of a long text would take more memory than its reading


@torch.inference_mode()
def log_probabilities(network: Any, tokens: Tensor) -> Tensor:
    """Of each token after those before it."""
    x, _ = network.decode(tokens[:, :-1], EMPTY)
    parts = []
    for some, targets in zip(
        x.flatten(0, 1).split(PLACES), tokens[:, 1:].flatten().clamp(min=0).split(PLACES), strict=True
    ):
        parts.append(-F.cross_entropy(network.output(some).float(), targets, reduction="none"))
    return torch.cat(parts).view(tokens.size(0), -1)


class Likelihood(NamedTuple):
    """Of a text, or of many: the sum of log probabilities, and of how many tokens and bytes."""

    total: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """The mean negative log probability of a token, in nats."""
        return -self.total / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(min(700.0, self.loss))

    @property
    def bits_per_byte(self) -> float:
        """Comparable whatever the tokens are."""
        return -self.total / math.log(2) / max(1, self.bytes)


def of_windows(
    network: Any,
    read: Callable[[int, int], Any],
    windows: Iterator[tuple[int, int, int]],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[float, int]]:
    """Of each window of a long text: sum and count of its log probabilities; `read(begin, end)` gives its tokens.

    A window (begin, end, first) counts its tokens from `first` on: those before are its context.
    """
    device = next(network.parameters()).device
    for group in _groups(windows, batch_size):
        rows = [[int(token) for token in read(begin, end)] for begin, end, _ in group]
        found = log_probabilities(network, pad(rows, 0).tokens.to(device))
        for row, (begin, end, first) in zip(found, group, strict=True):
            counted = row[first - begin - 1 : end - begin - 1]
            yield float(counted.double().sum()), len(counted)
        progress(len(group))


def _groups(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    group: list[Any] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def of_endings(
    network: Any, prompts: Sequence[list[int]], endings: Sequence[list[int]], batch_size: int = 16
) -> list[float]:
    """The log probability of each ending after its prompt, summed over its tokens."""
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]) - len(endings[number]))
    found = [0.0] * len(prompts)
    device = next(network.parameters()).device
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        rows = [prompts[number] + endings[number] for number in numbers]
        logs = log_probabilities(network, pad(rows, 0).tokens.to(device))
        for row, number in zip(logs, numbers, strict=True):
            end = len(prompts[number]) + len(endings[number]) - 1
            found[number] = float(row[end - len(endings[number]) : end].sum())
    return found


def likelihood(
    network: Any, stream: TokenStream, length: int, stride: int, most: int = 0, batch_size: int = 8, **more: Any
) -> Likelihood:
    """How likely a text is, or its first `most` tokens: in windows of `length` tokens that move by `stride`."""
    spans = windows(range(min(len(stream), most or len(stream))), length + 1, stride)
    found = list(of_windows(network, lambda begin, last: stream.tokens[begin:last], spans, batch_size, **more))
    total, count = sum(total for total, _ in found), sum(count for _, count in found)
    return Likelihood(total, count, round(stream.bytes * count / max(1, len(stream) - 1)))
