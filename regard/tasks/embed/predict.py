"""Texts as vectors: read by an encoder whole, or by any network that gives each place a state. Reimers & Gurevych 2019.

Shapes: states (batch, length, width), vectors (texts, width).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.trace import Axes, Axis, SegmentedTrace, Trace, record
from regard.errors import UserError
from regard.interop.sentence_transformers import Pooling
from regard.layers.inputs import TokenBatch, pad
from regard.models.heads.hierarchical import Documents
from regard.models.heads.sequence import Classifier
from regard.tasks.batching import check_texts, encode_batches, too_long
from regard.tasks.classify.answers import told_by
from regard.text.vocabulary import Tokenizer

Text = str | tuple[str, str]

BATCH = 64  # texts that are read at once where nobody says how many


class Read(NamedTuple):
    """A text, or a pair of them, as an encoder is given it: what its tokenizer puts round it included."""

    tokens: list[int]
    segments: list[int]
    cut: bool = False  # it lost its end


@dataclass(frozen=True)
class Vector:
    """A text as numbers."""

    vector: list[float]
    truncated: bool = False

    @property
    def text(self) -> str:
        return " ".join(f"{number:.6g}" for number in self.vector)

    @property
    def others(self) -> tuple["Vector", ...]:
        return ()


def read_texts(tokenizer: Tokenizer, texts: Sequence[Text], limit: int, truncate: bool = False) -> list[Read]:
    """Texts as rows; of a pair the second's tokens are in segment 1, as the tokenizer says. A long one is refused."""
    check_texts(texts, pairs=True)
    found = tokenizer.inner.encode_batch(list(texts))
    rows = []
    for text, each in zip(texts, found, strict=True):
        ids, types = list(each.ids), list(each.type_ids)
        over = len(ids) - limit
        if not ids:
            raise UserError("an input is empty: there is nothing to read")
        if over > 0 and not truncate:
            raise too_long(text, len(ids), limit)
        if over > 0:
            behind = _behind(each.special_tokens_mask)
            keep = [*range(limit - behind), *range(len(ids) - behind, len(ids))]
            ids, types = [ids[place] for place in keep], [types[place] for place in keep]
        rows.append(Read(ids, types, over > 0))
    return rows


def _behind(special: list[int]) -> int:
    """How many tokens a tokenizer puts behind a text, which a cut leaves there."""
    return next((number for number, mark in enumerate(reversed(special)) if not mark), 0)


def together(rows: Sequence[Read], padding: int = 0) -> TokenBatch:
    """Rows as one batch."""
    text = pad([row.tokens for row in rows], padding)
    if not any(any(row.segments) for row in rows):
        return text
    return text._replace(segments=pad([row.segments for row in rows], 0).tokens)


def pooled(states: Tensor, text: TokenBatch, pooling: Pooling) -> Tensor:
    """One vector a text, from the states of its real tokens."""
    states, real = states.float(), text.real[:, :, None]
    if pooling.kind == "cls":
        found = states[:, 0]
    elif pooling.kind == "max":
        found = states.masked_fill(~real, -torch.inf).amax(1)
    else:
        found = states.masked_fill(~real, 0.0).sum(1) / text.lengths[:, None]
    return F.normalize(found, dim=-1) if pooling.normalise else found


@torch.inference_mode()
def embed(
    network: Any,
    rows: Sequence[Read],
    pooling: Pooling,
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """A float32 vector for each row; rows of like length are read together."""
    device = next(network.parameters()).device
    vectors: np.ndarray | None = None

    def read(numbers: list[int]) -> np.ndarray:
        text = together([rows[number] for number in numbers]).to(device)
        return pooled(network.encode(text), text, pooling).cpu().numpy()

    for numbers, found in encode_batches(network, [len(row.tokens) for row in rows], batch_size, read):
        vectors = np.zeros((len(rows), found.shape[1]), np.float32) if vectors is None else vectors
        vectors[numbers] = found
        progress(len(numbers))
    return np.zeros((0, 0), np.float32) if vectors is None else vectors


@torch.no_grad()
def look_at(network: Any, tokenizer: Tokenizer, row: Read, prove: bool = False) -> Trace:
    """What is attended to while an encoder reads a text; where it tells labels, its answer is what it tells."""
    text, pieces = together([row]).to(next(network.parameters()).device), tokenizer.pieces(row.tokens)
    with record(prove) as recorder:
        found = network(text) if isinstance(network, Classifier) else network.encode(text)
    answer = told_by(network, found, row.cut).text if isinstance(network, Classifier) else ""
    if isinstance(network, Documents):
        cut = network.cut(text).text
        rows = [row[:length] for row, length in zip(cut.tokens.tolist(), cut.lengths.tolist(), strict=True)]
        return SegmentedTrace(recorder, [Axis(tokenizer.pieces(row)) for row in rows], Axis(pieces), answer)
    return Trace(recorder, Axes.encoder(Axis(pieces), answer), answer)
