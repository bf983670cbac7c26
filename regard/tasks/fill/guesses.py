"""How well hidden words are found again, row by row: for validation and for `regard evaluate` alike."""

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
    """Logits of words are made for hidden places alone."""
    states = network.encode(batch.text)
    words = network.words(states[batch.at]).float()
    if batch.labels is None:
        return Predicted(states, (words,))
    return Predicted(states, (words, network.nsp_logits(states, batch.text).float()))


class Guesses(NamedTuple):
    """Of each row: the sum of its hidden words' losses, how many there are, how many were guessed; and the words."""

    losses: np.ndarray
    counts: np.ndarray
    hits: np.ndarray
    relations: np.ndarray | None  # 1.0 where it was told right how the two texts stand to each other
    words: np.ndarray

    @property
    def loss(self) -> float:
        return float(self.losses.sum() / self.counts.sum())

    @property
    def accuracy(self) -> float:
        return 100 * float(self.hits.sum() / self.counts.sum())

    @property
    def related(self) -> float:
        """Of how many pairs in a hundred it was told right how they stand to each other."""
        assert self.relations is not None
        return 100 * float(self.relations.mean())

    @property
    def unigram(self) -> float:
        """The entropy of the hidden words: no guess that looks at none of the others can have a lower loss."""
        _, counts = np.unique(self.words, return_counts=True)
        shares = counts / counts.sum()
        return -float((shares * np.log(shares)).sum())

    def figures(self) -> dict[str, float]:
        found = {"loss": self.loss, "perplexity": math.exp(self.loss), "accuracy": self.accuracy}
        return found | ({} if self.relations is None else {"pairs": self.related}) | {"unigram": self.unigram}


@torch.no_grad()
def guess(
    network: MaskedLM, batches: Iterable[MaskedBatch], progress: Callable[[int], None] = lambda done: None
) -> Guesses:
    """What the network makes of these batches."""
    device, rows, words = next(network.parameters()).device, [], []
    for batch in batches:
        batch = batch.to(device)
        (logits, *relation), places = predict(network, batch).logits, batch.at.nonzero()[:, 0].cpu().numpy()
        losses = F.cross_entropy(logits, batch.words, reduction="none")
        per_place = (losses, torch.ones_like(losses), logits.argmax(1) == batch.words)
        sums = [np.bincount(places, each.double().cpu().numpy(), len(batch.at)) for each in per_place]
        rows.append([*sums, *((each.argmax(1) == batch.labels).double().cpu().numpy() for each in relation)])
        words.append(batch.words.cpu().numpy())
        progress(len(batch.at))
    losses, counts, hits, *relations = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Guesses(losses, counts, hits, relations[0] if relations else None, np.concatenate(words))
