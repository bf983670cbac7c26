"""Span prediction head for extractive question answering. Devlin et al. 2019, section 4.2."""

from regard.layers.encoder import Encoder
from regard.models.heads.token import TokenClassifier


class SpanClassifier(TokenClassifier):
    """Logits of the start and the end of an answer (batch, length, 2)."""

    task = "answer"

    def __init__(self, body: Encoder, allows_no_answer: bool = False):
        super().__init__(body, ("start", "end"))
        self.allows_no_answer = allows_no_answer  # whether it was trained on unanswerable questions
