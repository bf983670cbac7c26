"""Span prediction head for extractive question answering. Devlin et al. 2019, section 4.2."""

from regard.layers.encoder import Encoder
from regard.models.heads.token import TokenClassifier


class SpanClassifier(TokenClassifier):
    """Where an answer begins and where it ends: logits (batch, length, 2)."""

    task = "answer"

    def __init__(self, body: Encoder, allows_no_answer: bool = False):
        super().__init__(body, ("start", "end"))
        self.allows_no_answer = allows_no_answer  # whether it was trained on questions that have none
