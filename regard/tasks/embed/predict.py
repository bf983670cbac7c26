"""Embeddings of texts or images by any model with hidden states. Reimers & Gurevych 2019.

Shapes: states (batch, length, width), vectors (inputs, width).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.errors import UserError, nearest
from regard.interop.sentence_transformers import POOLINGS, Pooling
from regard.layers.inputs import ImageBatch, TokenBatch
from regard.models.registry import FAMILIES, family_of
from regard.progress import Progress
from regard.tasks.batching import encode_batches
from regard.tasks.encoding import EncoderPredictor, collate, encode_texts, split_pair
from regard.tasks.images import (
    image_of_row,
    image_rows,
    images_of_arguments,
    is_single_image,
    read_pixels,
    trace_of_image,
)
from regard.tasks.predictor import Inference, LoadedModel, Options, RunInput, Unranked
from regard.tasks.registry import task_of

BATCH = 64  # default number of inputs per batch


@dataclass(frozen=True)
class Vector(Unranked):
    """The embedding of a text or an image."""

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

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self.family = FAMILIES[family_of(model.network)]
        self.takes_images = self.family.is_encoder and self.family.input_type is ImageBatch
        if self.takes_images:
            self.text_columns = ("image",)

    @classmethod
    def accepts(cls, model: LoadedModel) -> bool:
        return FAMILIES[family_of(model.network)].input_type in (TokenBatch, ImageBatch)

    def is_single(self, inputs: Any) -> bool:
        return is_single_image(inputs) if self.takes_images else super().is_single(inputs)

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Vector]:
        rows = self.encode_inputs(inputs, inference.truncate)
        vectors = self.embed(rows, inference.batch_size, progress=inference.progress, **options)
        return [Vector(vector.tolist(), row.truncated) for vector, row in zip(vectors, rows, strict=True)]

    @torch.inference_mode()
    def embed(
        self,
        rows: Sequence[Any],
        batch_size: int = BATCH,
        pooling: str = "",
        normalise: bool | None = None,
        progress: Progress = lambda done: None,
    ) -> np.ndarray:
        """Embeddings of encoded inputs, float32 (inputs, width). By default the checkpoint's pooling, else mean."""
        if pooling and pooling not in POOLINGS:
            raise UserError(f"pooling = '{pooling}' is unknown{nearest(pooling, POOLINGS)}")
        if pooling == "cls" and self.takes_images and not getattr(self.network, "body", self.network).tokens:
            raise UserError("pooling = 'cls' needs a [CLS] token, which this model has not: use 'mean' or 'max'")
        default = self.model.pooling or Pooling()
        chosen = default._replace(
            kind=pooling or default.kind, normalise=default.normalise if normalise is None else normalise
        )

        def encode(indices: list[int]) -> np.ndarray:
            chunk = [rows[index] for index in indices]
            batch = self._batch(chunk).to(self.model.device)
            return pooled(self.network.encode(batch), batch, chosen).cpu().numpy()

        lengths = [self.network.max_positions if self.takes_images else len(row.tokens) for row in rows]
        vectors = np.zeros((0, 0), np.float32)
        for indices, batch in encode_batches(self.network, lengths, batch_size, encode):
            if not len(vectors):
                vectors = np.zeros((len(rows), batch.shape[1]), np.float32)
            vectors[indices] = batch
            progress(len(indices))
        return vectors

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[Any]:
        if self.takes_images:
            return image_rows(texts)
        if not self.family.is_encoder:
            return task_of(self.model.task).predictor(self.model).encode_inputs(texts, truncate)
        pooling = self.model.pooling
        texts = [split_pair(text, getattr(self.network, "paired", False)) for text in texts]
        limit = min(self.network.max_positions, pooling.max_length if pooling else 0) or self.network.max_positions
        return encode_texts(self.tokenizer, texts, limit, truncate)

    @torch.no_grad()
    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        if not self.takes_images:
            return super().trace(value, target, prove, truncate, options)
        rows = image_rows([value])
        with record(prove) as recorder:
            self.network.encode(self._batch(rows).to(self.model.device))
        return trace_of_image(recorder, getattr(self.network, "body", self.network), self.processor.source, rows[0], "")

    def _batch(self, rows: Sequence[Any]) -> TokenBatch | ImageBatch:
        return self.processor.source([read_pixels(row.value) for row in rows]) if self.takes_images else collate(rows)

    def second_column(self, requested: str, has_context: bool) -> str:
        if requested and (self.takes_images or not self.family.is_encoder):
            return super().second_column(requested, has_context)
        return requested

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput] | None:
        return images_of_arguments(arguments) if self.takes_images else None

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        if self.takes_images:
            return image_of_row(text, location)
        return super().parse_row(text, second, extra, location)


def pooled(states: Tensor, batch: TokenBatch | ImageBatch, pooling: Pooling) -> Tensor:
    """One vector per input, from the hidden states of its tokens or patches."""
    states = states.float()
    real = (batch.real if isinstance(batch, TokenBatch) else states.new_ones(states.shape[:2]).bool())[:, :, None]
    if pooling.kind == "cls":
        vectors = states[:, 0]
    elif pooling.kind == "max":
        vectors = states.masked_fill(~real, -torch.inf).amax(1)
    else:
        vectors = states.masked_fill(~real, 0.0).sum(1) / real.sum(1)
    return F.normalize(vectors, dim=-1) if pooling.normalise else vectors
