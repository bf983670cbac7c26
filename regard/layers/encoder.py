"""Encoders: networks with a hidden state for each position, computed from the full input.

    tokens, positions, segments ─▶ embed ─▶ projection ─▶ blocks ─▶ states ─▶ pooler ─▶ one vector for the text
    pixels or frames            ─▶ …                              ─▶ states ─▶ pool   ─▶ one vector for the input

Shapes: tokens, segments (batch, length), states (batch, length, width).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from torch import Tensor, nn

from regard.attention.positions import Learned
from regard.attention.recording import scope
from regard.errors import UserError
from regard.layers.blocks import ACTIVATIONS, Stack
from regard.layers.dropout import Dropout
from regard.layers.inputs import Batch, TokenBatch

Pool = Callable[[Tensor, Any], Tensor]  # states and the batch they are of → one vector for each input


class InputEmbedding(nn.Module):
    """The sum of token, position and segment embeddings, normalised. Devlin et al. 2019, figure 2."""

    def __init__(
        self,
        table: nn.Embedding,
        positions: Learned | None,
        token_types: nn.Embedding | None,
        norm: nn.Module,
        dropout: float,
        first: int = 0,
    ):
        """The first token has row `first` of the positions."""
        super().__init__()
        self.table = table
        self.positions = positions
        self.token_types = token_types
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.first = first

    def forward(self, tokens: Tensor, segments: Tensor | None = None, start: int = 0) -> Tensor:
        """`start` is the position of the first token."""
        x = self.table(tokens)
        if self.positions is not None:
            x = x + self.positions(self.first + start, tokens.size(1))
        if self.token_types is not None:
            single = segments is None or self.token_types.num_embeddings == 1  # RoBERTa has one type for both texts
            x = x + (self.token_types.weight[0] if single else self.token_types(segments))
        return self.dropout(self.norm(x))


class Pooler(nn.Module):
    """One vector for a text: a dense layer over the state of its first token. Devlin et al. 2019, section 4.1."""

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, states: Tensor, text: TokenBatch | None = None) -> Tensor:
        return self.activation(self.dense(states[:, 0]))


class Encoder(nn.Module, ABC):
    """An encoder-only network of any modality: every position depends on the full input.

    Its config has `width` and `dropout`, which heads need.
    """

    task = "embed"
    input_type: type[Batch]

    config: Any
    pooler: Pooler | None

    @property
    @abstractmethod
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`, for example to list the attention sites."""

    @property
    @abstractmethod
    def max_positions(self) -> int:
        """The longest input, in positions."""

    @abstractmethod
    def encode(self, inputs: Any) -> Tensor:
        """The hidden state of each position. Padding does not affect them; its own states are undefined."""

    def forward(self, inputs: Any) -> Tensor:
        return self.encode(inputs)

    def unpooled(self) -> Self:
        """Without the pooler, which heads over all positions do not use."""
        if self.pooler is not None:
            self.pooler = None
            self.config = replace(self.config, pooler=False)
        return self

    @abstractmethod
    def classification_pool(self) -> Pool:
        """The pooling for classification: the one it was trained with, or a new one."""


class TextEncoder(Encoder):
    """An encoder of tokens. Its config also has `max_positions`, `pooler_activation` and `output_activation`."""

    input_type = TokenBatch

    embed: InputEmbedding
    embedding_projection: nn.Module  # the identity, unless embeddings are narrower than states
    encoder: nn.Module  # a `Stack` of Transformer blocks, or a recurrent encoder

    @property
    def dummy_inputs(self) -> tuple:
        return (TokenBatch.minimal(next(self.parameters()).device),)

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    def encode(self, text: TokenBatch) -> Tensor:
        with scope("encoder"):
            x = self.embedding_projection(self.embed(text.tokens, text.segments))
            return self.encoder(x, padding_mask(text))[0]

    def pooled(self, states: Tensor, text: TokenBatch | None = None) -> Tensor:
        """The pooled vector of each text (batch, width), from its states."""
        assert self.pooler is not None
        return self.pooler(states)

    def classification_pool(self) -> Pool:
        return self.pooled if self.pooler is not None else Pooler(self.config.width, self.config.pooler_activation)


def padding_mask(text: TokenBatch) -> Tensor | None:
    """The padding mask; None without padding, because kernels without a mask are faster."""
    return None if int(text.lengths.min()) == text.tokens.size(1) else text.real


def spaced(layers: int, kept: int) -> list[int]:
    """The indices of evenly spaced layers, from the first to the last; six of 12 are 0 2 4 7 9 11."""
    return [round(index * (layers - 1) / max(kept - 1, 1)) for index in range(kept)]


def shorten(network: nn.Module, depth: int) -> None:
    """Keep `depth` evenly spaced layers of an encoder, in place: a smaller student. Sanh et al. 2019, section 3."""
    body = getattr(network, "body", network)
    if not isinstance(body, TextEncoder) or not isinstance(body.encoder, Stack):
        raise UserError(f"model.depth = {depth}: only encoders of Transformer blocks can be shortened; remove it")
    if getattr(body.config, "hidden_groups", 0):
        raise UserError(f"model.depth = {depth}: the layers of model.from share their weights, so none can be removed")
    blocks = body.encoder.blocks
    if type(depth) is not int or not 1 <= depth <= len(blocks):
        raise UserError(f"model.depth = {depth}: model.from has {len(blocks)} layers; give 1 … {len(blocks)} of them")
    body.encoder.blocks = nn.ModuleList(blocks[index] for index in spaced(len(blocks), depth))
    body.config = replace(body.config, depth=depth)
