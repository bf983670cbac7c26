"""Loss and accuracy of masked tokens, row by row, for validation and for `regard evaluate`."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from regard.models.heads.mlm import MaskedLM
from regard.tasks.distillation import Predicted
from regard.tasks.fill.batches import MaskedBatch


def predict(network: Any, batch: MaskedBatch) -> Predicted:
    """Logits of the masked tokens, and with labels also of the pairs. No others are computed."""
    states = network.encode(batch.text)
    words = network.words(states[batch.at]).float()
    if batch.labels is None:
        return Predicted(states, (words,))
    return Predicted(states, (words, network.nsp_logits(states, batch.text).float()))


class RowScores(NamedTuple):
    """For each row, the summed loss of its masked tokens, their count and the correct ones; and the original tokens."""

    losses: np.ndarray
    counts: np.ndarray
    hits: np.ndarray
    relations: np.ndarray | None  # 1.0 where the label of the pair is predicted correctly
    words: np.ndarray

    @property
    def loss(self) -> float:
        return float(self.losses.sum() / self.counts.sum())

    @property
    def accuracy(self) -> float:
        return 100 * float(self.hits.sum() / self.counts.sum())

    @property
    def unigram(self) -> float:
        """The entropy of the masked tokens: a lower bound of the loss without any context."""
        _, counts = np.unique(self.words, return_counts=True)
        shares = counts / counts.sum()
        return -float((shares * np.log(shares)).sum())

    def metrics(self) -> dict[str, float]:
        metrics = {"loss": self.loss, "perplexity": math.exp(self.loss), "accuracy": self.accuracy}
        if self.relations is not None:
            metrics["pairs"] = 100 * float(self.relations.mean())
        return metrics | {"unigram": self.unigram}


@torch.no_grad()
def score_batches(
    network: MaskedLM, batches: Iterable[MaskedBatch], progress: Callable[[int], None] = lambda done: None
) -> RowScores:
    """The scores of all rows of these batches."""
    device = next(network.parameters()).device
    columns = []
    words = []
    for batch in batches:
        batch = batch.to(device)
        logits, *pair_logits = predict(network, batch).logits
        rows = batch.at.nonzero()[:, 0].cpu().numpy()
        losses = F.cross_entropy(logits, batch.words, reduction="none")
        per_token = (losses, torch.ones_like(losses), logits.argmax(1) == batch.words)
        sums = [np.bincount(rows, values.double().cpu().numpy(), len(batch.at)) for values in per_token]
        relations = [(scores.argmax(1) == batch.labels).double().cpu().numpy() for scores in pair_logits]
        columns.append([*sums, *relations])
        words.append(batch.words.cpu().numpy())
        progress(len(batch.at))
    losses, counts, hits, *relations = (np.concatenate(column) for column in zip(*columns, strict=True))
    return RowScores(losses, counts, hits, relations[0] if relations else None, np.concatenate(words))
