"""Heads of masked language modelling and next sentence prediction. Devlin et al. 2019."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.layers.blocks import ACTIVATIONS, init_weights
from regard.layers.encoder import TextEncoder
from regard.layers.inputs import TokenBatch
from regard.models.heads.base import Head


class MLMHead(nn.Module):
    """Logits over the vocabulary; the output layer is the embedding table if the config ties them."""

    def __init__(self, config: Any, table: nn.Embedding):
        super().__init__()
        embedding_width = table.embedding_dim
        self.dense = nn.Linear(config.width, embedding_width)
        self.activation = ACTIVATIONS[config.output_activation or config.activation]
        self.norm = nn.LayerNorm(embedding_width, config.epsilon)
        self.output = nn.Linear(embedding_width, table.num_embeddings)
        self.apply(init_weights)
        if config.tied:
            self.output.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(self.activation(self.dense(x))))


class MaskedLM(Head):
    """Masked language modelling. Devlin et al. 2019, section 3.1, task 1."""

    task = "fill"

    def __init__(self, body: TextEncoder):
        super().__init__(body)
        self.lm_head = MLMHead(body.config, body.embed.table)

    def forward(self, text: TokenBatch, at: Tensor | None = None) -> Tensor:
        """Logits (batch, length, vocabulary), or (positions, vocabulary) only where `at` is True."""
        states = self.encode(text)
        return self.lm_head(states if at is None else states[at])


class PairPooler(nn.Module):
    """A pooled vector of two texts: a dense layer over the product of their mean states.

    With a layer over the first state instead, a small model needs millions of pairs.
    """

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[activation]
        self.apply(init_weights)

    def forward(self, states: Tensor, text: TokenBatch) -> Tensor:
        second = text.real & (text.segments == 1) if text.segments is not None else torch.zeros_like(text.real)
        return self.activation(self.dense(self._mean(states, text.real & ~second) * self._mean(states, second)))

    @staticmethod
    def _mean(states: Tensor, at: Tensor) -> Tensor:
        return states.masked_fill(~at[:, :, None], 0.0).sum(1) / at.sum(1, keepdim=True).clamp(min=1)


class PretrainingLogits(NamedTuple):
    """Logits of masked tokens, and of the sentence pair task (batch, 2)."""

    mlm: Tensor
    nsp: Tensor


class Pretraining(MaskedLM):
    """Masked language modelling, and a sentence pair task: next sentence prediction (BERT) or order (ALBERT).

    Label 0: two consecutive texts, or in their order. Label 1: a random second text, or swapped.
    """

    def __init__(self, body: TextEncoder):
        super().__init__(body)
        config = body.config
        self.pair_pooler = PairPooler(config.width, config.pooler_activation) if body.pooler is None else None
        self.nsp_head = nn.Linear(config.width, 2)
        init_weights(self.nsp_head)

    def forward(self, text: TokenBatch, at: Tensor | None = None) -> PretrainingLogits:  # pyright: ignore[reportIncompatibleMethodOverride]
        states = self.encode(text)
        return PretrainingLogits(self.lm_head(states if at is None else states[at]), self.nsp_logits(states, text))

    def nsp_logits(self, states: Tensor, text: TokenBatch) -> Tensor:
        """Logits (batch, 2) from the backbone's states."""
        return self.nsp_head(self.body.pooled(states) if self.pair_pooler is None else self.pair_pooler(states, text))
