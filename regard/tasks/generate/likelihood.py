"""Log-likelihood of texts under a language model: the metric of pre-training, and the score of multiple-choice options.

Shapes: tokens (batch, length), padded on the right; log-probabilities (batch, length − 1): of each token but the first.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import pad
from regard.layers.protocols import CausalLM
from regard.progress import Progress
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


def metrics(total: float, count: float, bytes_per_token: float) -> dict[str, float]:
    """The metrics of a text from the sum of the log-probabilities of `count` tokens.

    `loss` is in nats per token; `bits_per_byte` is comparable between tokenizers.
    """
    loss = float(-total / max(1, count))
    bits_per_byte = loss / math.log(2) / bytes_per_token
    return {"loss": loss, "perplexity": math.exp(min(700.0, loss)), "bits_per_byte": bits_per_byte}


def window_log_probabilities(
    network: CausalLM,
    tokens: Sequence[int] | np.ndarray,
    windows: Iterator[tuple[int, int, int]],
    batch_size: int,
    progress: Progress = lambda done: None,
) -> Iterator[tuple[float, int]]:
    """Sum and count of the log-probabilities of each window of a long text.

    A window (begin, end, first) counts its tokens from `first` on; those before are context.
    """
    device = next(network.parameters()).device
    while group := list(islice(windows, batch_size)):
        rows = [tokens[begin:end] for begin, end, _ in group]
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
