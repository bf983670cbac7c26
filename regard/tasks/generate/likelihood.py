"""Log-likelihood of texts under a language model: the metric of pre-training, and the score of multiple-choice options.

Shapes: tokens (batch, length), padded on the right; log-probabilities (batch, length − 1): of each token but the first.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.packing import windows
from regard.data.token_stream import TokenStream
from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import pad
from regard.layers.protocols import CausalLM
from regard.tasks.batching import by_length

CHUNK = 2048  # positions whose logits are computed at once: those of a long text would not fit in memory


@torch.inference_mode()
def log_probabilities(network: CausalLM, tokens: Tensor) -> Tensor:
    """Log-probability of each token given those before it."""
    x, _ = network.decode(tokens[:, :-1], EMPTY)
    states = x.flatten(0, 1).split(CHUNK)
    targets = tokens[:, 1:].flatten().clamp(min=0).split(CHUNK)
    logs = []
    for chunk, target in zip(states, targets, strict=True):
        logs.append(-F.cross_entropy(network.output(chunk).float(), target, reduction="none"))
    return torch.cat(logs).view(tokens.size(0), -1)


class Likelihood(NamedTuple):
    """Sum of log-probabilities of one or more texts, with their numbers of tokens and bytes."""

    total: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Mean negative log-probability per token, in nats."""
        return -self.total / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(min(700.0, self.loss))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return -self.total / math.log(2) / max(1, self.bytes)


def window_log_probabilities(
    network: CausalLM,
    read: Callable[[int, int], Iterable[int]],
    windows: Iterator[tuple[int, int, int]],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[float, int]]:
    """Sum and count of the log-probabilities of each window of a long text; `read(begin, end)` returns its tokens.

    A window (begin, end, first) counts its tokens from `first` on; those before are context.
    """
    device = next(network.parameters()).device
    while group := list(islice(windows, batch_size)):
        rows = [[int(token) for token in read(begin, end)] for begin, end, _ in group]
        logs = log_probabilities(network, pad(rows, 0).tokens.to(device))
        for row, (begin, end, first) in zip(logs, group, strict=True):
            counted = row[first - begin - 1 : end - begin - 1]
            yield float(counted.double().sum()), len(counted)
        progress(len(group))


def ending_log_probabilities(
    network: CausalLM, prompts: Sequence[list[int]], endings: Sequence[list[int]], batch_size: int = 16
) -> list[float]:
    """Log-probability of each ending after its prompt, summed over its tokens."""
    rows = [prompt + ending for prompt, ending in zip(prompts, endings, strict=True)]
    sums = [0.0] * len(rows)
    device = next(network.parameters()).device
    for indices in by_length([len(row) for row in rows], batch_size):
        logs = log_probabilities(network, pad([rows[index] for index in indices], 0).tokens.to(device))
        for row, index in zip(logs, indices, strict=True):
            end = len(rows[index]) - 1
            sums[index] = float(row[end - len(endings[index]) : end].sum())
    return sums


def likelihood(
    network: CausalLM, stream: TokenStream, length: int, stride: int, most: int = 0, batch_size: int = 8
) -> Likelihood:
    """Likelihood of a text, or of its first `most` tokens, in windows of `length` tokens that move by `stride`."""
    spans = windows(range(min(len(stream), most or len(stream))), length + 1, stride)
    sums = window_log_probabilities(network, lambda begin, end: stream.tokens[begin:end], spans, batch_size)
    total = 0.0
    count = 0
    for window_total, window_count in sums:
        total += window_total
        count += window_count
    return Likelihood(total, count, round(stream.bytes * count / max(1, len(stream) - 1)))
