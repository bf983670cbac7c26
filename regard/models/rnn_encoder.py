"""A recurrent encoder: a text is read one word after another, one way or both, and every place has a state.

    tokens ─▶ embed ─▶ [ read forwards, read backwards ] × depth ─▶ states ─▶ last | mean | attention ─▶ one vector

What labels were told from before BERT: the last state (Sutskever et al. 2014's vector), the mean of all, or all of them
weighed by attention (Yang et al. 2016). With the cell "lstmn" it also looks back over its own states (Cheng et al.
2016).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention.trace import scope
from regard.layers.encoder import Encoder, InputEmbedding, Summary
from regard.layers.inputs import TokenBatch
from regard.layers.pooling import POOLINGS, LastStatePooling, attention_pooling, mean_pooling
from regard.layers.recurrent import CELLS, RNNEncoder


@dataclass(frozen=True)
class RecurrentConfig:
    vocabulary: int
    embedding_width: int = 128
    width: int = 256  # of a state, both directions together
    depth: int = 1
    cell: str = "lstm"
    bidirectional: bool = True
    pooling: str = "attention"  # the last state, the mean of all, or all weighed
    score_width: int = 0  # width in which states are weighed; 0: as `width`
    dropout: float = 0.3
    max_positions: int = 1024  # the longest text that is read

    CHOICES = {"cell": CELLS, "pooling": POOLINGS}
    token_types = 0  # this and the rest: what heads of any encoder need
    tied = True
    epsilon = 1e-5
    activation = "gelu"
    output_activation = ""
    pooler_activation = "tanh"

    def problem(self) -> str | None:
        """What does not fit together, in words."""
        if self.bidirectional and self.width % 2:
            return f"width {self.width} is no sum of two directions: it should be even, or bidirectional = false"
        if self.cell == "lstmn" and self.bidirectional:
            return "cell = 'lstmn' looks back over what it has read: set bidirectional = false"
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


class Recurrent(Encoder):
    encoder: RNNEncoder  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config, self.pooler = config, None
        table = nn.Embedding(config.vocabulary, config.embedding_width)
        nn.init.normal_(table.weight, std=0.1)
        self.embed = InputEmbedding(table, None, None, nn.Identity(), config.dropout)
        shape = config.one_way, config.depth, config.bidirectional, config.dropout
        self.encoder = RNNEncoder(config.cell, config.embedding_width, *shape, config.score_width or config.width)

    def encode(self, text: TokenBatch) -> Tensor:
        with scope("encoder"):
            return self.encoder(self.embed(text.tokens), text.lengths).states

    def summary(self) -> Summary:
        if self.config.pooling == "last":
            return LastStatePooling(self.config.one_way)
        width = self.config.width
        return (
            mean_pooling(width)
            if self.config.pooling == "mean"
            else attention_pooling(width, self.config.score_width or width)
        )
