"""What every network has in common that reads a whole text at once and gives each place a state.

    tokens, places, segments ─▶ embed ─▶ widen ─▶ blocks ─▶ states ─▶ pooler ─▶ one vector for the text

Shapes: tokens, segments (batch, length), states (batch, length, width).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from torch import Tensor, nn

from regard.attention.positions import Learned
from regard.attention.trace import scope
from regard.layers.activations import ACTIVATIONS
from regard.layers.blocks import Stack
from regard.layers.dropout import Dropout
from regard.layers.inputs import TokenBatch

Summary = Callable[[Tensor, TokenBatch], Tensor]


class InputEmbedding(nn.Module):
    """The sum of a token's vector, its place's and its segment's, normed. Devlin et al. 2019, figure 2."""

    def __init__(
        self,
        table: nn.Embedding,
        positions: Learned | None,
        token_types: nn.Embedding | None,
        norm: nn.Module,
        dropout: float,
        first: int = 0,
    ):
        """The first token's place is row `first` of the positions."""
        super().__init__()
        self.table, self.positions, self.token_types = table, positions, token_types
        self.norm, self.dropout, self.first = norm, Dropout(dropout), first

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        x = self.table(tokens)
        if self.positions is not None:
            x = x + self.positions(self.first, tokens.size(1))
        if self.token_types is not None:
            alike = segments is None or self.token_types.num_embeddings == 1  # RoBERTa reads two texts as one
            x = x + (self.token_types.weight[0] if alike else self.token_types(segments))
        return self.dropout(self.norm(x))


class Pooler(nn.Module):
    """One vector for a text: the state of its first token through one more layer."""

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.dense, self.activation = nn.Linear(width, width), ACTIVATIONS[activation]

    def forward(self, states: Tensor, text: TokenBatch | None = None) -> Tensor:
        return self.activation(self.dense(states[:, 0]))


class Encoder(nn.Module):
    """A network that neither goes on with a text nor turns it into another: every place sees all of it.

    Its config has `width`, `max_positions`, `dropout`, `pooler_activation` and `output_activation`, which heads need.
    """

    task = "embed"
    input_type = TokenBatch

    config: Any
    embed: InputEmbedding
    embedding_projection: nn.Module  # where embeddings are narrower than states, else nothing
    encoder: Stack
    pooler: Pooler | None

    @property
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`, for example to list the attention sites."""
        return (self.input_type.minimal(next(self.parameters()).device),)

    @property
    def max_positions(self) -> int:
        """The longest text that is read."""
        return self.config.max_positions

    def encode(self, text: TokenBatch) -> Tensor:
        """The state of each place, from all of its text; padding changes none, and has states that mean nothing."""
        with scope("encoder"):
            return self.encoder(self.embedding_projection(self.embed(text.tokens, text.segments)), unpadded(text))[0]

    def forward(self, text: TokenBatch) -> Tensor:
        return self.encode(text)

    def pooled(self, states: Tensor, text: TokenBatch | None = None) -> Tensor:
        """One vector for each text (batch, width), from its states."""
        assert self.pooler is not None
        return self.pooler(states)

    def unpooled(self) -> Self:
        """Without the pooler, which those that look at every place leave idle."""
        if self.pooler is not None:
            self.pooler, self.config = None, replace(self.config, pooler=False)
        return self

    def summary(self) -> Summary:
        """What labels are told from: the pooler it was trained with, or a new one."""
        return self.pooled if self.pooler is not None else Pooler(self.config.width, self.config.pooler_activation)


def unpadded(text: TokenBatch) -> Tensor | None:
    """Which places are real, or nothing where all are: kernels without a mask are faster."""
    return None if int(text.lengths.min()) == text.tokens.size(1) else text.real


def initialise(module: nn.Module) -> None:
    """Devlin et al. 2019 draw all matrices with a deviation of 0.02; biases begin at zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
