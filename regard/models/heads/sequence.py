"""Labels from one vector for a text: one more product over what a network knows of it.

    text, end ─▶ language model ─▶ the state at the end ─▶ head ─▶ logits of the labels     Radford et al. 2018, 3.2
                   └───▶ every state ─▶ the body's own output: the auxiliary loss
    begin, text ─▶ encoder ─▶ the state at the beginning, pooled ─▶ head ─▶ logits          Devlin et al. 2019, 4.1
                     └───▶ the mean of all states ─▶ head ─▶ logits, where the encoder was trained to be read so

Shapes: states (batch, length, width), logits (batch, labels), of a value (batch, 1).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.encoder import Encoder
from regard.layers.inputs import TokenBatch
from regard.layers.pooling import mean_pooling
from regard.layers.protocols import CausalLM
from regard.models.heads.base import Head

KINDS = (
    "single_label",
    "multi_label",
    "regression",
)  # a text has one of the labels, any of them (a sigmoid each), or a value


def last(states: Tensor, text: TokenBatch) -> Tensor:
    """The state of each text's last token, which alone has seen all of it."""
    return states[torch.arange(len(states), device=states.device), text.lengths - 1]


class Labelling(NamedTuple):
    """What was told, and the states of the text it was told from."""

    states: Tensor
    logits: Tensor


class Classifier(Head):
    """A body that gives each place a state (`encode`), and a head on their summary."""

    task = "classify"

    def __init__(
        self,
        body: Any,
        labels: Sequence[str],
        paired: bool | None = None,
        problem_type: str = "single_label",
        scale: float = 1.0,
        width: int = 0,
        averaged: bool = False,
    ):
        """Labels are told from a summary `width` wide; 0: as wide as the body's states.

        `averaged`: from the mean of an encoder's states, not from its pooler. `paired`: of two texts, where known.
        """
        super().__init__(body)
        self.labels, self.paired, self.problem_type = tuple(labels), paired, problem_type
        self.scale = scale  # the head tells values in units of it, so that it learns as fast whatever their size
        is_encoder = isinstance(body, Encoder)
        self.averaged = averaged
        self.summary = mean_pooling(body.config.width) if averaged else body.summary() if is_encoder else last
        self.dropout = Dropout(body.config.dropout if is_encoder else 0.0)
        self.head = nn.Linear(width or body.config.width, len(self.labels), bias=is_encoder)
        nn.init.normal_(self.head.weight, std=0.02)
        if is_encoder:
            nn.init.zeros_(self.head.bias)

    @property
    def new(self) -> list[nn.Module]:
        """What is trained whole also where the body is only adapted: the head, and the pooler it stands on."""
        pooler = self.summary if isinstance(self.summary, nn.Module) else getattr(self.body, "pooler", None)
        return [self.head] if pooler is None else [self.head, pooler]

    @property
    def tells(self) -> bool:
        """Whether the body can also say what comes next."""
        return isinstance(self.body, CausalLM) and not isinstance(self.body.output, nn.Identity)

    def forward(self, text: TokenBatch) -> Tensor:
        return self.label(text).logits

    def label(self, text: TokenBatch) -> Labelling:
        """Logits, with what they come from."""
        states = self.encode(text)
        return Labelling(states, self.told(states, text))

    def told(self, states: Tensor, text: TokenBatch) -> Tensor:
        """Logits from the body's states, or values."""
        return self.tell(self.summary(states, text))

    def tell(self, summary: Tensor) -> Tensor:
        """Logits, or values, from one vector for each text."""
        return self.head(self.dropout(summary)) * self.scale

    @torch.no_grad()
    def expect(self, mean: float) -> None:
        """Begin with this value for every text, where the head has a bias to say it with."""
        if self.head.bias is not None:
            self.head.bias.fill_(mean / self.scale)

    def chances(self, logits: Tensor) -> Tensor:
        """How likely each label is: among all where a text has one, by itself where it has several; or the value."""
        if self.problem_type == "regression":
            return logits
        return logits.sigmoid() if self.problem_type == "multi_label" else logits.softmax(-1)

    def silenced(self) -> "Classifier":
        """Without the body's own output, where it is a table of its own that nothing here would use."""
        if self.tells and self.body.output.weight is not self.body.embed.table.weight:
            self.body.output = nn.Identity()
        return self
