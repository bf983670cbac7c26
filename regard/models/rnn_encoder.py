"""A recurrent encoder, unidirectional or bidirectional, with a state for each position.

    tokens ─▶ embed ─▶ [ forward RNN, backward RNN ] × depth ─▶ states ─▶ last | mean | attention | concat ─▶ one vector

A classifier pools the last state (Sutskever et al. 2014), the mean of all, all by attention (Yang et al. 2016), or the
last, the maximum and the mean (Howard & Ruder 2018). The cell "lstmn" also attends to its previous states (Cheng et
al. 2016).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention.recording import scope
from regard.layers.encoder import InputEmbedding, Pool, TextEncoder
from regard.layers.inputs import TokenBatch
from regard.layers.pooling import POOLINGS, pooling_of
from regard.layers.recurrent import CELLS, RNNEncoder


@dataclass(frozen=True)
class RecurrentConfig:
    vocabulary: int
    embedding_width: int = 128
    width: int = 256  # of a state, both directions together
    depth: int = 1
    cell: str = "lstm"
    bidirectional: bool = True
    pooling: str = "attention"  # or the last state, the mean of all, or last, maximum and mean
    score_width: int = 0  # width of the attention score; 0: as `width`
    dropout: float = 0.3
    max_positions: int = 1024  # the longest text

    CHOICES = {"cell": CELLS, "pooling": POOLINGS}
    token_types = 0  # this and the following: needed by the heads of all encoders
    tied = True
    epsilon = 1e-5
    activation = "gelu"
    output_activation = ""
    pooler_activation = "tanh"

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.bidirectional and self.width % 2:
            return f"width {self.width} should be even for two directions; else set bidirectional = false"
        if self.cell == "lstmn" and self.bidirectional:
            return "cell = 'lstmn' attends to previous states only: set bidirectional = false"
        return None

    @property
    def one_way(self) -> int:
        """Width of the states of each direction."""
        return self.width // 2 if self.bidirectional else self.width


PRESETS: dict[str, dict] = {
    "tiny": dict(embedding_width=64, width=64),  # 0.5M with 8,000 tokens, as all below
    "small": dict(embedding_width=128, width=256),  # 1.3M
    "medium": dict(embedding_width=256, width=512, depth=2),  # 4.7M
}


class Recurrent(TextEncoder):
    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config = config
        self.pooler = None
        table = nn.Embedding(config.vocabulary, config.embedding_width)
        nn.init.normal_(table.weight, std=0.1)
        self.embed = InputEmbedding(table, None, None, nn.Identity(), config.dropout)
        shape = config.one_way, config.depth, config.bidirectional, config.dropout
        self.encoder = RNNEncoder(config.cell, config.embedding_width, *shape, config.score_width or config.width)

    def encode(self, text: TokenBatch) -> Tensor:
        with scope("encoder"):
            return self.encoder(self.embed(text.tokens), text.lengths).states

    def classification_pool(self) -> Pool:
        config = self.config
        return pooling_of(config.pooling, config.width, config.one_way, config.score_width, config.dropout)
