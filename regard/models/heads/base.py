"""What encoders are trained for and made into: a few layers over their states. Devlin et al. 2019, sections 3.1 and 4.

    states ─▶ dense, bend, norm ─▶ table of the embedding ─▶ which word was hidden              MaskedLM
    first state ─▶ pooler ─▶ whether the second text follows the first, or their order          Pretraining has both
    means of two texts ─▶ their product, dense, bend ─▶ the same, where a body has no pooler    Comparison
    states ─▶ a label for each token                                                            TokenClassifier
    states ─▶ where an answer begins, where it ends                                             SpanClassifier

Labels of whole texts are in classifier.py.

Shapes: states (batch, length, width).
"""

from typing import Any

from torch import Tensor, nn

from regard.layers.inputs import TokenBatch


class Head(nn.Module):
    """A body that gives each place a state (`encode`), with something on top of it."""

    task: str  # set by each head

    def __init__(self, body: Any):
        super().__init__()
        self.body = body

    @property
    def input_type(self) -> type[TokenBatch]:
        return self.body.input_type

    @property
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`, for example to list the attention sites."""
        return (self.input_type.minimal(next(self.parameters()).device),)

    @property
    def config(self) -> Any:
        return self.body.config

    @property
    def max_positions(self) -> int:
        """The longest text that is read."""
        return self.body.max_positions

    def encode(self, text: TokenBatch) -> Tensor:
        """The state of each place."""
        return self.body.encode(text)
