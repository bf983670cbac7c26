"""Heads of masked language modelling and next sentence prediction. Devlin et al. 2019."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.layers.activations import ACTIVATIONS
from regard.layers.encoder import Encoder, initialise
from regard.layers.inputs import TokenBatch
from regard.models.heads.base import Head


class MLMHead(nn.Module):
    """States → logits of the vocabulary, through the table of the embedding unless the config unties it."""

    def __init__(self, config: Any, table: nn.Embedding):
        super().__init__()
        vocabulary, inside = table.num_embeddings, table.embedding_dim
        self.dense = nn.Linear(config.width, inside)
        self.activation = ACTIVATIONS[config.output_activation or config.activation]
        self.norm = nn.LayerNorm(inside, config.epsilon)
        self.output = nn.Linear(inside, vocabulary)
        self.apply(initialise)
        if config.tied:
            self.output.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(self.activation(self.dense(x))))


class MaskedLM(Head):
    """Says which word stands at each place."""

    task = "fill"

    def __init__(self, body: Encoder):
        super().__init__(body)
        self.words = MLMHead(body.config, body.embed.table)

    def forward(self, text: TokenBatch, at: Tensor | None = None) -> Tensor:
        """Logits (batch, length, vocabulary), or (places, vocabulary) where `at` is True: no others are made."""
        states = self.encode(text)
        return self.words(states if at is None else states[at])


class PairPooler(nn.Module):
    """What two texts have in common: the product of their mean states, through one more layer.

    A layer over the first state has to find it there, which takes a small model millions of pairs.
    """

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.dense, self.activation = nn.Linear(width, width), ACTIVATIONS[activation]
        self.apply(initialise)

    def forward(self, states: Tensor, text: TokenBatch) -> Tensor:
        second = text.real & (text.segments == 1) if text.segments is not None else torch.zeros_like(text.real)
        return self.activation(self.dense(self._mean(states, text.real & ~second) * self._mean(states, second)))

    @staticmethod
    def _mean(states: Tensor, at: Tensor) -> Tensor:
        return states.masked_fill(~at[:, :, None], 0.0).sum(1) / at.sum(1, keepdim=True).clamp(min=1)


class PretrainingLogits(NamedTuple):
    """What pre-training asks for: logits of hidden words, and (batch, 2) of how two texts stand to each other."""

    words: Tensor
    relation: Tensor


class Pretraining(MaskedLM):
    """Hidden words, and how two texts stand to each other: 0, the second follows the first (BERT) or the two are in
    their order (ALBERT); 1, they are from different places or swapped."""

    def __init__(self, body: Encoder):
        super().__init__(body)
        config = body.config
        self.compare = PairPooler(config.width, config.pooler_activation) if body.pooler is None else None
        self.relation = nn.Linear(config.width, 2)
        initialise(self.relation)

    def forward(self, text: TokenBatch, at: Tensor | None = None) -> PretrainingLogits:  # pyright: ignore[reportIncompatibleMethodOverride]
        states = self.encode(text)
        return PretrainingLogits(self.words(states if at is None else states[at]), self.nsp_logits(states, text))

    def nsp_logits(self, states: Tensor, text: TokenBatch) -> Tensor:
        """Logits (batch, 2) from the body's states."""
        return self.relation(self.body.pooled(states) if self.compare is None else self.compare(states, text))
