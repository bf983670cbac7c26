"""Token classification head."""

from collections.abc import Sequence

from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.encoder import Encoder, initialise
from regard.layers.inputs import TokenBatch
from regard.models.heads.base import Head


class TokenClassifier(Head):
    """Logits of the labels of each token. Devlin et al. 2019, section 5.3."""

    task = "tag"

    def __init__(self, body: Encoder, labels: Sequence[str]):
        super().__init__(body)
        self.labels = tuple(labels)
        self.dropout = Dropout(body.config.dropout)
        self.head = nn.Linear(body.config.width, len(self.labels))
        initialise(self.head)

    @property
    def trainable_modules(self) -> list[nn.Module]:
        """What is trained in full even where the body has adapters."""
        return [self.head]

    def forward(self, text: TokenBatch) -> Tensor:
        """Logits (batch, length, labels)."""
        return self.logits_from_states(self.encode(text))

    def logits_from_states(self, states: Tensor) -> Tensor:
        """Logits from the body's states."""
        return self.head(self.dropout(states))
