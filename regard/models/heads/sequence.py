"""Sequence classification: a linear head over one vector for a text.

    text, end ─▶ language model ─▶ last state ─▶ head ─▶ logits of the labels     Radford et al. 2018, 3.2
                   ├───▶ last state, maximum, mean ─▶ head ─▶ logits                Howard & Ruder 2018, 3.3
                   └───▶ all states ─▶ LM head: the auxiliary loss
    begin, text ─▶ encoder ─▶ first state, pooled ─▶ head ─▶ logits               Devlin et al. 2019, 4.1
                     └───▶ mean of all states ─▶ head ─▶ logits, if the encoder was trained with mean pooling

Shapes: states (batch, length, width), logits (batch, labels), of a value (batch, 1).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.inputs import TokenBatch
from regard.layers.pooling import MeanPooling
from regard.layers.protocols import CausalLM
from regard.models.heads.base import Head


def last(states: Tensor, text: TokenBatch) -> Tensor:
    """The state of the last token of each text, the only one that attends to all of it."""
    return states[torch.arange(len(states), device=states.device), text.lengths - 1]


class ClassifierOutput(NamedTuple):
    """Logits, and the hidden states that they come from."""

    states: Tensor
    logits: Tensor
    distilled: Tensor | None = None  # logits of a head that learns from a teacher only, in training


class Classifier(Head):
    """A backbone with hidden states (`encode`), pooled into one vector, and a linear head on it."""

    task = "classify"

    def __init__(
        self,
        body: Any,
        labels: Sequence[str],
        paired: bool | None = None,
        problem_type: str = "single_label",
        scale: float = 1.0,
        width: int = 0,
        mean_pooled: bool = False,
    ):
        """The head reads a vector of `width`; 0: that of the pooling, or of the backbone's states.

        `mean_pooled`: from the mean of an encoder's states, not from its pooler. `paired`: of two texts, where known.
        """
        super().__init__(body)
        self.labels = tuple(labels)
        self.paired = paired
        self.problem_type = problem_type
        self.scale = scale  # of regression targets: the head predicts in units of it, so that it learns equally fast
        self.mean_pooled = mean_pooled
        has_pool = hasattr(body, "classification_pool")
        pool = body.classification_pool if has_pool else lambda: last
        self.pool = MeanPooling() if mean_pooled else pool()
        self.dropout = Dropout(body.config.dropout if has_pool else 0.0)
        inputs = width or getattr(self.pool, "width", body.config.width)
        self.head = nn.Linear(inputs, len(self.labels), bias=has_pool)
        nn.init.normal_(self.head.weight, std=0.02)
        if has_pool:
            nn.init.zeros_(self.head.bias)

    @property
    def trainable_modules(self) -> list[nn.Module]:
        """What is trained in full even where the backbone has adapters: the head, and the pooler before it."""
        pooler = self.pool if isinstance(self.pool, nn.Module) else getattr(self.body, "pooler", None)
        return [self.head] if pooler is None else [self.head, pooler]

    @property
    def has_lm_head(self) -> bool:
        """Whether the backbone can also predict the next token."""
        return isinstance(self.body, CausalLM) and not isinstance(self.body.output, nn.Identity)

    def forward(self, text: TokenBatch) -> Tensor:
        return self.label(text).logits

    def label(self, text: TokenBatch) -> ClassifierOutput:
        """Logits, with the hidden states."""
        states = self.encode(text)
        return ClassifierOutput(states, self.logits_from_states(states, text))

    def logits_from_states(self, states: Tensor, text: TokenBatch) -> Tensor:
        """Logits, or values, from the backbone's hidden states."""
        return self.logits_from_pooled(self.pool(states, text))

    def logits_from_pooled(self, pooled: Tensor) -> Tensor:
        """Logits, or values, from one vector for each text."""
        return self.head(self.dropout(pooled)) * self.scale

    @torch.no_grad()
    def init_bias(self, mean: float) -> None:
        """Start with this prediction for every text, where the head has a bias."""
        if self.head.bias is not None:
            self.head.bias.fill_(mean / self.scale)

    def probabilities(self, logits: Tensor) -> Tensor:
        """A softmax over labels, a sigmoid for each (multi-label), or the value (regression)."""
        if self.problem_type == "regression":
            return logits
        return logits.sigmoid() if self.problem_type == "multi_label" else logits.softmax(-1)

    def drop_lm_head(self) -> "Classifier":
        """Without the backbone's output layer, unless that is tied to the embedding."""
        if self.has_lm_head and self.body.output.weight is not self.body.embed.table.weight:
            self.body.output = nn.Identity()
        return self
