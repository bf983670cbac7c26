"""RoBERT: labels of documents longer than an encoder reads. Pappagari et al. 2019.

    document ─▶ segments that overlap ─▶ encoder, each alone ─▶ a vector each ─▶ LSTM over them ─▶ last state ─▶ head

A segment stands between what the tokenizer put before and behind the whole document. One that fits into a segment is
read as it is.

Shapes: states (batch, length, width), of segments (segments, length, width), their vectors (segments, width).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.attention.trace import recorder
from regard.layers.inputs import TokenBatch
from regard.layers.recurrent import RNNEncoder
from regard.models.heads.sequence import Classifier, Labelling

WIDTH = 100  # of the LSTM: section 4.3

LONGEST = 1 << 16  # tokens of a document

AT_ONCE = 64  # segments, so that what they need of memory does not grow with the document


class Segments(NamedTuple):
    """A batch of documents cut into rows; each place of a row is one of its document."""

    text: TokenBatch
    document: Tensor  # (segments,): whose each is
    places: Tensor  # (segments, length): where its tokens stand there
    last: Tensor  # (segments, length): whether no later segment has that place too
    counts: Tensor  # (batch,): segments of each document


class Documents(Classifier):
    """An encoder that reads a document segment by segment, and what tells its label from all of them."""

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
        """Segments have `segment` tokens, with what stands round them; a new one begins every `stride` tokens."""
        super().__init__(body, labels, problem_type=problem_type, scale=scale, width=WIDTH, mean_pooled=mean_pooled)
        self.segment, self.stride = segment, stride
        self.reader = RNNEncoder("lstm", body.config.width, WIDTH, depth=1, bidirectional=False, dropout=0.0)

    @property
    def max_positions(self) -> int:
        return LONGEST

    @property
    def trainable_modules(self) -> list[nn.Module]:
        return [*super().trainable_modules, self.reader]

    def cut(self, text: TokenBatch) -> Segments:
        """Every document's segments, one after another."""
        inside, room = (text.lengths - 2).clamp(min=0), self.segment - 2
        counts = 1 + (inside - room).clamp(min=0).add(self.stride - 1) // self.stride
        document = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        number = torch.arange(len(document), device=counts.device) - (counts.cumsum(0) - counts)[document]
        begin = number * self.stride
        size = (inside[document] - begin).clamp(max=room)
        column = torch.arange(int(size.max()) + 2, device=counts.device)
        end = (text.lengths[document] - 1)[:, None]
        places = torch.where(column == 0, 0, torch.where(column <= size[:, None], begin[:, None] + column, end))
        rows = TokenBatch(text.tokens[document[:, None], places], torch.minimum(size + 2, text.lengths[document]))
        first, final = (number == 0)[:, None], (number == counts[document] - 1)[:, None]
        latest = rows.real & torch.where(column == 0, first, final | (column <= self.stride))
        return Segments(rows._replace(tokens=rows.tokens.masked_fill(~rows.real, 0)), document, places, latest, counts)

    def encode(self, text: TokenBatch) -> Tensor:
        """The state of each place; one that lies in two segments has it from the later."""
        segments = self.cut(text)
        return self._back(self._read(segments)[0], segments, text)

    def label(self, text: TokenBatch) -> Labelling:
        segments = self.cut(text)
        states, vectors = self._read(segments)
        rows = pad_sequence(list(vectors.split(segments.counts.tolist())), batch_first=True)
        last = self.reader(rows, segments.counts).last
        return Labelling(self._back(states, segments, text), self.logits_from_pooled(last))

    def _read(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """The states of all segments, and a vector for each; some at a time, unless somebody watches them together."""
        tokens, lengths, _ = segments.text
        size = len(tokens) if recorder() else AT_ONCE
        parts = [TokenBatch(*part) for part in zip(tokens.split(size), lengths.split(size), strict=True)]
        states = [self.body.encode(part) for part in parts]
        vectors = [self.summary(each, part) for each, part in zip(states, parts, strict=True)]
        return torch.cat(states), torch.cat(vectors)

    def _back(self, states: Tensor, segments: Segments, text: TokenBatch) -> Tensor:
        """States of segments, each at its place in the document."""
        document, last = segments.document[:, None].expand_as(segments.last), segments.last
        found = states.new_zeros(*text.tokens.shape, states.size(-1))
        found[document[last], segments.places[last]] = states[last]
        return found
