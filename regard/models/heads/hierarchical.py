"""RoBERT: classification of documents longer than the context of an encoder. Pappagari et al. 2019.

    document ─▶ overlapping segments ─▶ encoder ─▶ a pooled vector each ─▶ LSTM ─▶ last state ─▶ head

Each segment has the first and the last token of the document around it. A document that fits into one segment is
encoded as it is.

Shapes: states (batch, length, width), of segments (segments, length, width), their vectors (segments, width).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.attention.recording import recorder
from regard.layers.inputs import TokenBatch
from regard.layers.recurrent import RNNEncoder
from regard.models.heads.sequence import Classifier, ClassifierOutput

WIDTH = 100  # of the LSTM: section 4.3

MAX_LENGTH = 1 << 16  # tokens of a document

SEGMENTS_AT_ONCE = 64  # segments encoded at a time, so that memory does not grow with the document


class Segments(NamedTuple):
    """A batch of documents, split into segments."""

    text: TokenBatch
    document: Tensor  # (segments,): the index of its document
    positions: Tensor  # (segments, length): of each token in the document
    last: Tensor  # (segments, length): whether no later segment contains that position
    counts: Tensor  # (batch,): segments of each document


class Documents(Classifier):
    """A classifier of documents: an encoder for segments, and an LSTM over their vectors."""

    def __init__(
        self,
        body: Any,
        labels: Sequence[str],
        segment: int,
        stride: int,
        problem_type: str = "single_label",
        scale: float = 1.0,
        mean_pooled: bool = False,
    ):
        """Segments have `segment` tokens, special tokens included; a new one starts every `stride` tokens."""
        super().__init__(body, labels, problem_type=problem_type, scale=scale, width=WIDTH, mean_pooled=mean_pooled)
        self.segment = segment
        self.stride = stride
        self.rnn = RNNEncoder("lstm", body.config.width, WIDTH, depth=1, bidirectional=False, dropout=0.0)

    @property
    def max_positions(self) -> int:
        return MAX_LENGTH

    @property
    def trainable_modules(self) -> list[nn.Module]:
        return [*super().trainable_modules, self.rnn]

    def split_into_segments(self, text: TokenBatch) -> Segments:
        """The segments of all documents, in order."""
        inner = (text.lengths - 2).clamp(min=0)  # without the first and the last token
        capacity = self.segment - 2
        counts = 1 + (inner - capacity).clamp(min=0).add(self.stride - 1) // self.stride
        document = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        index = torch.arange(len(document), device=counts.device) - (counts.cumsum(0) - counts)[document]
        begin = index * self.stride
        size = (inner[document] - begin).clamp(max=capacity)
        column = torch.arange(int(size.max()) + 2, device=counts.device)
        end = (text.lengths[document] - 1)[:, None]
        positions = torch.where(column == 0, 0, torch.where(column <= size[:, None], begin[:, None] + column, end))
        rows = TokenBatch(text.tokens[document[:, None], positions], torch.minimum(size + 2, text.lengths[document]))
        first = (index == 0)[:, None]
        final = (index == counts[document] - 1)[:, None]
        latest = rows.real & torch.where(column == 0, first, final | (column <= self.stride))
        rows = rows._replace(tokens=rows.tokens.masked_fill(~rows.real, 0))
        return Segments(rows, document, positions, latest, counts)

    def encode(self, text: TokenBatch) -> Tensor:
        """The hidden state of each position; where segments overlap, that of the later one."""
        segments = self.split_into_segments(text)
        return self._scatter(self._encode(segments)[0], segments, text)

    def label(self, text: TokenBatch) -> ClassifierOutput:
        segments = self.split_into_segments(text)
        states, vectors = self._encode(segments)
        rows = pad_sequence(list(vectors.split(segments.counts.tolist())), batch_first=True)
        last = self.rnn(rows, segments.counts).last
        return ClassifierOutput(self._scatter(states, segments, text), self.logits_from_pooled(last))

    def _encode(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """The hidden states of all segments and their pooled vectors, SEGMENTS_AT_ONCE at a time unless recorded."""
        tokens, lengths, _ = segments.text
        size = len(tokens) if recorder() else SEGMENTS_AT_ONCE
        states = []
        vectors = []
        for batch in map(TokenBatch, tokens.split(size), lengths.split(size)):
            states.append(self.body.encode(batch))
            vectors.append(self.pool(states[-1], batch))
        return torch.cat(states), torch.cat(vectors)

    def _scatter(self, states: Tensor, segments: Segments, text: TokenBatch) -> Tensor:
        """States of segments → states of documents."""
        last = segments.last
        document = segments.document[:, None].expand_as(last)
        scattered = states.new_zeros(*text.tokens.shape, states.size(-1))
        scattered[document[last], segments.positions[last]] = states[last]
        return scattered
