"""Embeddings of texts by any model with hidden states. Reimers & Gurevych 2019.

Shapes: states (batch, length, width), vectors (texts, width).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError, nearest
from regard.interop.sentence_transformers import POOLINGS, Pooling
from regard.layers.inputs import TokenBatch
from regard.models.registry import FAMILIES, family_of
from regard.progress import Progress
from regard.tasks.batching import EncodedText, encode_batches
from regard.tasks.encoding import EncoderPredictor, collate, encode_texts, split_pair
from regard.tasks.predictor import Inference, LoadedModel, Options, Unranked
from regard.tasks.registry import task_of

BATCH = 64  # default number of texts per batch


@dataclass(frozen=True)
class Vector(Unranked):
    """The embedding of a text."""

    vector: list[float]
    truncated: bool = False

    @property
    def text(self) -> str:
        return " ".join(f"{value:.6g}" for value in self.vector)


class EmbedPredictor(EncoderPredictor):
    """`run --task embed` and `embed` of any model."""

    task = "embed"
    description = "an embedding model"
    options = ("pooling", "normalise")

    @classmethod
    def accepts(cls, model: LoadedModel) -> bool:
        return True

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Vector]:
        rows = self.encode_inputs(inputs, inference.truncate)
        vectors = self.embed(rows, inference.batch_size, progress=inference.progress, **options)
        return [Vector(vector.tolist(), row.truncated) for vector, row in zip(vectors, rows, strict=True)]

    @torch.inference_mode()
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

        def encode(indices: list[int]) -> np.ndarray:
            text = collate([rows[index] for index in indices]).to(self.model.device)
            return pooled(self.network.encode(text), text, chosen).cpu().numpy()

        vectors = np.zeros((0, 0), np.float32)
        for indices, batch in encode_batches(self.network, [len(row.tokens) for row in rows], batch_size, encode):
            if not len(vectors):
                vectors = np.zeros((len(rows), batch.shape[1]), np.float32)
            vectors[indices] = batch
            progress(len(indices))
        return vectors

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        if not FAMILIES[family_of(self.network)].is_encoder:
            return task_of(self.model.task).predictor(self.model).encode_inputs(texts, truncate)
        pooling = self.model.pooling
        texts = [split_pair(text, getattr(self.network, "paired", False)) for text in texts]
        limit = min(self.network.max_positions, pooling.max_length if pooling else 0) or self.network.max_positions
        return encode_texts(self.tokenizer, texts, limit, truncate)

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
