"""AWD-LSTM: a causal language model of LSTM layers, regularised by dropout at every place. Merity et al. 2018.

    tokens ─▶ embed ─▶ [ LSTM, hidden-to-hidden weights dropped ] × depth ─▶ logits, from the table of the embedding
              words of the vocabulary dropped, then variational dropout of inputs, between layers, of outputs

A classifier reads the last state, the maximum and the mean of all (ULMFiT: Howard & Ruder 2018).

Of the paper's training, averaged SGD is replaced by the training loop's AdamW with EMA, and sequences of random length
with the state carried from batch to batch by blocks of one length in random order, each from the zero state.

Shapes: tokens (rows, new), x (rows, new, width), states and cells (rows, width).
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from regard.attention.recording import scope
from regard.layers.autoregressive import RecurrentLM, RecurrentStates
from regard.layers.dropout import Dropout, VariationalDropout
from regard.layers.encoder import Pool
from regard.layers.pooling import POOLINGS, pooling_of
from regard.layers.pytree import State
from regard.layers.recurrent import WeightDropLSTM


@dataclass(frozen=True)
class AWDLSTMConfig:
    vocabulary: int
    width: int = 400  # of the embeddings and of the last layer
    hidden_width: int = 1150  # of the other layers
    depth: int = 3
    embedding_dropout: float = 0.1  # of words of the vocabulary, at all their positions
    input_dropout: float = 0.4  # of the embeddings,
    hidden_dropout: float = 0.3  # of the states between layers,
    weight_dropout: float = 0.5  # of hidden-to-hidden weights,
    dropout: float = 0.4  # and of the last layer's states
    tied: bool = True  # embedding and output share a table
    pooling: str = "concat"  # of a classifier
    max_positions: int = 1024  # the longest text at once; a continuation may be longer

    CHOICES = {"pooling": POOLINGS}

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message: none are."""
        return None

    @property
    def sizes(self) -> list[int]:
        """Widths of the embeddings and of each layer."""
        return [self.width, *[self.hidden_width] * (self.depth - 1), self.width]


PRESETS: dict[str, dict] = {
    "tiny": dict(width=64, hidden_width=128, depth=2),  # 0.7M with 8,000 tokens, as the next
    "small": dict(width=200, hidden_width=400),  # 4.3M
    "merity2018": dict(),  # 24.2M with the 10,000 words of Penn Treebank, 33.6M with the 33,278 of WikiText-2
}


class WordEmbedding(nn.Module):
    """Embeddings without the dropped words. Gal & Ghahramani 2016; Merity et al. 2018, section 4.3."""

    def __init__(self, config: AWDLSTMConfig):
        super().__init__()
        self.table = nn.Embedding(config.vocabulary, config.width)
        self.word_dropout = Dropout(config.embedding_dropout)
        self.dropout = VariationalDropout(config.input_dropout)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.training:
            x = x * self.word_dropout(x.new_ones(self.table.num_embeddings, 1))[tokens]
        return self.dropout(x)


class AWDLSTM(RecurrentLM):
    def __init__(self, config: AWDLSTMConfig):
        super().__init__()
        self.config = config
        self.embed = WordEmbedding(config)
        sizes = pairwise(config.sizes)
        self.decoder = nn.ModuleList(WeightDropLSTM(*size, config.weight_dropout) for size in sizes)
        between = [VariationalDropout(config.hidden_dropout) for _ in range(config.depth - 1)]
        self.dropouts = nn.ModuleList([*between, VariationalDropout(config.dropout)])
        self.output = nn.Linear(config.width, config.vocabulary)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        if config.tied:
            self.output.weight = self.embed.table.weight

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        before: RecurrentStates = state.hypothesis or self.initial_states(len(tokens))
        x = self.embed(tokens)
        layers = []
        with scope("decoder"):
            for layer, dropout, states in zip(self.decoder, self.dropouts, before.layers, strict=True):
                x, after = layer(x, states)
                x = dropout(x)
                layers.append(after)
        return x, State(None, RecurrentStates(tuple(layers), before.length + tokens.size(1)))

    def initial_states(self, rows: int) -> RecurrentStates:
        zeros = [self.embed.table.weight.new_zeros(rows, width) for width in self.config.sizes[1:]]
        return RecurrentStates(tuple((tensor, tensor) for tensor in zeros), 0)

    def classification_pool(self) -> Pool:
        config = self.config
        return pooling_of(config.pooling, config.width, config.width, dropout=config.dropout)
