"""Heads: layers over the hidden states of a backbone. Devlin et al. 2019, sections 3.1 and 4.

    states ─▶ dense, activation, norm ─▶ embedding table ─▶ logits of masked tokens             MaskedLM
    first state ─▶ pooler ─▶ next sentence prediction, or sentence order                        Pretraining: both
    means of two texts ─▶ product, dense, activation ─▶ the same, without a pooler              PairPooler
    states ─▶ logits of the labels of each token                                                TokenClassifier
    states ─▶ logits of the start and the end of an answer                                      SpanClassifier

Classifiers of texts are in sequence.py, of long documents in hierarchical.py.

Shapes: states (batch, length, width).
"""

from typing import Any

from torch import Tensor, nn

from regard.layers.inputs import Batch


class Head(nn.Module):
    """A backbone with hidden states (`encode`), and layers on top of it."""

    task: str  # set by each head

    def __init__(self, body: Any):
        super().__init__()
        self.body = body

    @property
    def input_type(self) -> type[Batch]:
        return self.body.input_type

    @property
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`, for example to list the attention sites."""
        return self.body.dummy_inputs[:1]

    @property
    def config(self) -> Any:
        return self.body.config

    @property
    def max_positions(self) -> int:
        """The longest input."""
        return self.body.max_positions

    def encode(self, inputs: Any) -> Tensor:
        """The hidden state of each position."""
        return self.body.encode(inputs)
