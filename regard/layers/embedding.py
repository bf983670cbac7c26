"""Embeddings of tokens and positions."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from regard.attention.positions import Learned, Sinusoid
from regard.layers.dropout import Dropout


class Embedding(nn.Module):
    """Token vectors (scaled by √width, as the 2017 paper does, or not) plus their positions."""

    def __init__(self, table: nn.Embedding, positions: nn.Module | None, scaled: bool, dropout: float):
        super().__init__()
        self.table = table
        self.positions = positions
        self.scale = math.sqrt(table.embedding_dim) if scaled else 1.0
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0, gap: Tensor | None = None) -> Tensor:
        """`start` is the position of the first token; `gap` is the padding before each row, if any."""
        x = self.table(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(start, tokens.size(1), gap)
        return self.dropout(x)


def both_sides(config: Any, width: int, scaled: bool) -> tuple[Embedding, Embedding]:
    """Source and target embeddings, which share their matrix if `tied` is "all"."""
    source = nn.Embedding(config.source_vocabulary, width)
    target = source if config.tied == "all" else nn.Embedding(config.target_vocabulary, width)

    def embedding(table: nn.Embedding) -> Embedding:
        positions = POSITIONS[config.positions](width, config.max_positions)
        return Embedding(table, positions, scaled, config.dropout)

    return embedding(source), embedding(target)


def untieable(config: Any) -> str | None:
    """Why both sides cannot share one embedding matrix, as a message; None if they can."""
    if config.tied == "all" and config.source_vocabulary != config.target_vocabulary:
        return 'tied = "all" needs one vocabulary for both sides: set tokenizer.joint = true or tied = "output"'
    return None


POSITIONS: dict[str, Callable[[int, int], nn.Module | None]] = {  # by (width, max_positions)
    "sinusoid": lambda width, max_positions: Sinusoid(width),
    "sinusoid_halves": lambda width, max_positions: Sinusoid(width, halves=True),
    "learned": Learned,
    "none": lambda width, max_positions: None,
}
