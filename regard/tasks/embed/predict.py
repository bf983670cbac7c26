"""Embeddings of texts by any model with hidden states. Reimers & Gurevych 2019.

Shapes: states (batch, length, width), vectors (texts, width).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.trace import Trace
from regard.errors import UserError, nearest
from regard.interop.sentence_transformers import POOLINGS, Pooling
from regard.layers.inputs import TokenBatch
from regard.models.registry import FAMILIES, family_of
from regard.tasks.batching import encode_batches
from regard.tasks.encoding import EncodedText, collate, encode_texts, split_pair, trace_encoder
from regard.tasks.predictor import LoadedModel, Predictor, Progress
from regard.tasks.registry import task_of

BATCH = 64  # default number of texts per batch


@dataclass(frozen=True)
class Vector:
    """The embedding of a text."""

    vector: list[float]
    truncated: bool = False

    @property
    def text(self) -> str:
        return " ".join(f"{value:.6g}" for value in self.vector)

    @property
    def alternatives(self) -> tuple["Vector", ...]:
        return ()


class EmbedPredictor(Predictor):
    """`run --task embed` and `embed` of any model."""

    task = "embed"
    description = "an embedding model"
    options = ("pooling", "normalise")

    @classmethod
    def accepts(cls, model: LoadedModel) -> bool:
        return True

    def predict(
        self, inputs: list[Any], options: dict[str, Any], *, batch_size: int, truncate: bool, progress: Progress
    ) -> list[Vector]:
        rows = self.encode_inputs(inputs, truncate)
        vectors = self.embed(rows, batch_size, progress=progress, **options)
        return [Vector(vector.tolist(), row.truncated) for vector, row in zip(vectors, rows, strict=True)]

    def embed(
        self,
        rows: Sequence[EncodedText],
        batch_size: int = BATCH,
        pooling: str = "",
        normalise: bool | None = None,
        progress: Progress = lambda done: None,
    ) -> np.ndarray:
        """Embeddings of encoded texts, float32 (texts, width). By default the checkpoint's pooling, else mean."""
        if pooling and pooling not in POOLINGS:
            raise UserError(f"pooling = '{pooling}' is unknown{nearest(pooling, POOLINGS)}")
        default = self.model.pooling or Pooling()
        chosen = default._replace(
            kind=pooling or default.kind, normalise=default.normalise if normalise is None else normalise
        )
        return embed(self.network, rows, chosen, batch_size, progress)

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        if not FAMILIES[family_of(self.network)].is_encoder:
            return task_of(self.model.task).predictor(self.model).encode_inputs(texts, truncate)
        pooling = self.model.pooling
        texts = [split_pair(text, getattr(self.network, "paired", False)) for text in texts]
        limit = min(self.network.max_positions, pooling.max_length if pooling else 0) or self.network.max_positions
        return encode_texts(self.tokenizer, texts, limit, truncate)

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
        (row,) = self.encode_inputs([value], truncate)
        return trace_encoder(self.network, self.tokenizer, row, prove)

    def second_column(self, requested: str, has_context: bool) -> str:
        if requested and not FAMILIES[family_of(self.network)].is_encoder:
            return super().second_column(requested, has_context)
        return requested


def pooled(states: Tensor, text: TokenBatch, pooling: Pooling) -> Tensor:
    """One vector per text, from the hidden states of its tokens."""
    states = states.float()
    real = text.real[:, :, None]
    if pooling.kind == "cls":
        vectors = states[:, 0]
    elif pooling.kind == "max":
        vectors = states.masked_fill(~real, -torch.inf).amax(1)
    else:
        vectors = states.masked_fill(~real, 0.0).sum(1) / text.lengths[:, None]
    return F.normalize(vectors, dim=-1) if pooling.normalise else vectors


@torch.inference_mode()
def embed(
    network: Any,
    rows: Sequence[EncodedText],
    pooling: Pooling,
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """A float32 vector for each row, computed in batches of similar length."""
    device = next(network.parameters()).device
    vectors: np.ndarray | None = None

    def encode(indices: list[int]) -> np.ndarray:
        text = collate([rows[index] for index in indices]).to(device)
        return pooled(network.encode(text), text, pooling).cpu().numpy()

    for indices, batch in encode_batches(network, [len(row.tokens) for row in rows], batch_size, encode):
        vectors = np.zeros((len(rows), batch.shape[1]), np.float32) if vectors is None else vectors
        vectors[indices] = batch
        progress(len(indices))
    return np.zeros((0, 0), np.float32) if vectors is None else vectors
