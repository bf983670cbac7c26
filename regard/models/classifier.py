"""Labels from a language model: one more product, over what it knows at a text's end. Radford et al. 2018, section 3.2.

    text, end ─▶ body ─▶ the state at the end ─▶ head ─▶ logits of the labels
                   └───▶ every state ─▶ the body's own output: the auxiliary loss

Shapes: states (batch, length, width), logits (batch, labels).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.inputs.batch import Sequences
from regard.layers.generator import LanguageModel

Summary = Callable[[Tensor, Sequences], Tensor]


def last(states: Tensor, text: Sequences) -> Tensor:
    """The state of each text's last token, which alone has seen all of it."""
    return states[torch.arange(len(states), device=states.device), text.lengths - 1]


class Classifier(nn.Module):
    """A body that gives each place a state (`encode`), and a head on their summary."""

    def __init__(self, body: Any, labels: Sequence[str], paired: bool = False, summary: Summary = last):
        super().__init__()
        self.body, self.labels, self.paired, self.summary = body, tuple(labels), paired, summary
        self.head = nn.Linear(body.config.width, len(self.labels), bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    @property
    def config(self) -> Any:
        return self.body.config

    @property
    def limit(self) -> int:
        """The longest text that is read."""
        return self.body.limit

    @property
    def tells(self) -> bool:
        """Whether the body can also say what comes next."""
        return isinstance(self.body, LanguageModel) and not isinstance(self.body.output, nn.Identity)

    def forward(self, text: Sequences) -> Tensor:
        return self.told(self.encode(text), text)

    def encode(self, text: Sequences) -> Tensor:
        """The state of each place."""
        return self.body.encode(text)

    def told(self, states: Tensor, text: Sequences) -> Tensor:
        """Logits from the body's states."""
        return self.head(self.summary(states, text))

    def silenced(self) -> "Classifier":
        """Without the body's own output, where it is a table of its own that nothing here would use."""
        if self.tells and self.body.output.weight is not self.body.embed.table.weight:
            self.body.output = nn.Identity()
        return self
