"""Heads over each token: token classification, and the spans of extractive question answering."""

from collections.abc import Sequence

from torch import Tensor, nn

from regard.layers.blocks import init_weights
from regard.layers.dropout import Dropout
from regard.layers.encoder import TextEncoder
from regard.layers.inputs import TokenBatch
from regard.models.heads.base import Head


class TokenClassifier(Head):
    """Logits of the labels of each token. Devlin et al. 2019, section 5.3."""

    task = "tag"

    def __init__(self, body: TextEncoder, labels: Sequence[str]):
        super().__init__(body)
        self.labels = tuple(labels)
        self.dropout = Dropout(body.config.dropout)
        self.head = nn.Linear(body.config.width, len(self.labels))
        init_weights(self.head)

    @property
    def trainable_modules(self) -> list[nn.Module]:
        """What is trained in full even where the backbone has adapters."""
        return [self.head]

    def forward(self, text: TokenBatch) -> Tensor:
        """Logits (batch, length, labels)."""
        return self.logits_from_states(self.encode(text))

    def logits_from_states(self, states: Tensor) -> Tensor:
        """Logits from the backbone's states."""
        return self.head(self.dropout(states))


class SpanClassifier(TokenClassifier):
    """Logits of the start and the end of an answer (batch, length, 2). Devlin et al. 2019, section 4.2."""

    task = "answer"

    def __init__(self, body: TextEncoder, allows_no_answer: bool = False):
        super().__init__(body, ("start", "end"))
        self.allows_no_answer = allows_no_answer  # whether it was trained on unanswerable questions
