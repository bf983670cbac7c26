"""What encoders are trained for and made into: a few layers over their states. Devlin et al. 2019, sections 3.1 and 4.

    states ─▶ dense, bend, norm ─▶ table of the embedding ─▶ which word was hidden              MaskedWords
    first state ─▶ pooler ─▶ whether the second text follows the first, or their order          Pretraining has both
    means of two texts ─▶ their product, dense, bend ─▶ the same, where a body has no pooler    Comparison
    states ─▶ a label for each token                                                            TokenLabels
    states ─▶ where an answer begins, where it ends                                             Spans

Labels of whole texts are in classifier.py.

Shapes: states (batch, length, width).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.inputs.batch import Sequences
from regard.layers.activations import ACTIVATIONS
from regard.layers.dropout import Dropout
from regard.layers.encoder import Encoder, initialise


class Words(nn.Module):
    """States → logits of the vocabulary, through the table of the embedding unless the config unties it."""

    def __init__(self, config: Any, table: nn.Embedding):
        super().__init__()
        vocabulary, inside = table.num_embeddings, table.embedding_dim
        self.dense = nn.Linear(config.width, inside)
        self.bend = ACTIVATIONS[config.output_activation or config.activation]
        self.norm = nn.LayerNorm(inside, config.epsilon)
        self.output = nn.Linear(inside, vocabulary)
        self.apply(initialise)
        if config.tied:
            self.output.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.norm(self.bend(self.dense(x))))


class Head(nn.Module):
    """A body that gives each place a state (`encode`), with something on top of it."""

    def __init__(self, body: Any):
        super().__init__()
        self.body = body

    @property
    def config(self) -> Any:
        return self.body.config

    @property
    def limit(self) -> int:
        """The longest text that is read."""
        return self.body.limit

    def encode(self, text: Sequences) -> Tensor:
        """The state of each place."""
        return self.body.encode(text)


class MaskedWords(Head):
    """Says which word stands at each place."""

    def __init__(self, body: Encoder):
        super().__init__(body)
        self.words = Words(body.config, body.embed.table)

    def forward(self, text: Sequences, at: Tensor | None = None) -> Tensor:
        """Logits (batch, length, vocabulary), or (places, vocabulary) where `at` is True: no others are made."""
        states = self.encode(text)
        return self.words(states if at is None else states[at])


class Comparison(nn.Module):
    """What two texts have in common: the product of their mean states, through one more layer.

    A layer over the first state has to find it there, which takes a small model millions of pairs.
    """

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.dense, self.bend = nn.Linear(width, width), ACTIVATIONS[activation]
        self.apply(initialise)

    def forward(self, states: Tensor, text: Sequences) -> Tensor:
        second = text.real & (text.segments == 1) if text.segments is not None else torch.zeros_like(text.real)
        return self.bend(self.dense(self._mean(states, text.real & ~second) * self._mean(states, second)))

    @staticmethod
    def _mean(states: Tensor, at: Tensor) -> Tensor:
        return states.masked_fill(~at[:, :, None], 0.0).sum(1) / at.sum(1, keepdim=True).clamp(min=1)


class Both(NamedTuple):
    """What pre-training asks for: logits of hidden words, and (batch, 2) of how two texts stand to each other."""

    words: Tensor
    relation: Tensor


class Pretraining(MaskedWords):
    """Hidden words, and how two texts stand to each other: 0, the second follows the first (BERT) or the two are in
    their order (ALBERT); 1, they are from different places or swapped."""

    def __init__(self, body: Encoder):
        super().__init__(body)
        config = body.config
        self.compare = Comparison(config.width, config.pooler_activation) if body.pooler is None else None
        self.relation = nn.Linear(config.width, 2)
        initialise(self.relation)

    def forward(self, text: Sequences, at: Tensor | None = None) -> Both:  # pyright: ignore[reportIncompatibleMethodOverride]
        states = self.encode(text)
        return Both(self.words(states if at is None else states[at]), self.related(states, text))

    def related(self, states: Tensor, text: Sequences) -> Tensor:
        """Logits (batch, 2) from the body's states."""
        return self.relation(self.body.pooled(states) if self.compare is None else self.compare(states, text))


class TokenLabels(Head):
    """A label for each token."""

    def __init__(self, body: Encoder, labels: Sequence[str]):
        super().__init__(body)
        self.labels = tuple(labels)
        self.dropout, self.head = Dropout(body.config.dropout), nn.Linear(body.config.width, len(self.labels))
        initialise(self.head)

    @property
    def new(self) -> list[nn.Module]:
        """What is trained whole also where the body is only adapted."""
        return [self.head]

    def forward(self, text: Sequences) -> Tensor:
        """Logits (batch, length, labels)."""
        return self.told(self.encode(text))

    def told(self, states: Tensor) -> Tensor:
        """Logits from the body's states."""
        return self.head(self.dropout(states))


class Spans(TokenLabels):
    """Where an answer begins and where it ends: logits (batch, length, 2)."""

    def __init__(self, body: Encoder, silent: bool = False):
        super().__init__(body, ("start", "end"))
        self.silent = silent  # whether it was trained on questions that have none
