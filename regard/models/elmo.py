"""ELMo: deep contextualized word representations from a bidirectional language model. Peters et al. 2018.

    word ─▶ characters ─▶ convolutions, max ─▶ highway × n ─▶ projection = x            context-independent: layer 0
    x ─▶ [ LSTM forwards,  projected ─▶ + ] × depth ─▶ logits of the next word            layers 1 … depth are
    x ─▶ [ LSTM backwards, projected ─▶ + ] × depth ─▶ logits of the previous word        [forwards; backwards]

    features of a word = γ Σⱼ softmax(s)ⱼ layerⱼ              equation 1; s and γ are learned with the task's head

A word is a token of the vocabulary. Its characters are the UTF-8 bytes of its name, rows of a table that is set once
when a model is built, so that networks take token ids like all others.

Shapes: tokens (batch, length), x (batch, length, width / 2), layers and features (batch, length, width).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.recording import scope
from regard.layers.autoregressive import RecurrentLM, RecurrentStates
from regard.layers.dropout import Dropout
from regard.layers.encoder import Pool, TextEncoder
from regard.layers.inputs import TokenBatch
from regard.layers.pooling import POOLINGS, pooling_of
from regard.layers.pytree import State
from regard.layers.recurrent import reverse

warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")  # torch has its own

PADDING, BEGIN, END = 0, 3, 4  # of a word's characters; byte b is b + 1, so that the marks are control characters
CHARACTERS = 257


@dataclass(frozen=True)
class ElmoConfig:
    vocabulary: int
    width: int = 1024  # of the features, both directions together
    hidden_width: int = 4096  # of a direction's LSTM cells, before the projection
    depth: int = 2  # 0: the character convolutions alone
    character_width: int = 16
    filters: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)  # of 1, 2, 3, … characters
    highways: int = 2
    max_characters: int = 50  # of a word, with the marks of its begin and end
    pooling: str = "concat"  # of a classifier
    dropout: float = 0.1
    max_positions: int = 1024  # the longest text

    CHOICES = {"pooling": POOLINGS}
    MAY_BE_ZERO = ("depth", "highways")
    token_types = 0  # this and the following: needed by the heads of all encoders
    tied = False
    epsilon = 1e-5
    output_activation = ""
    pooler_activation = "tanh"

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.width % 2:
            return f"width {self.width} should be even, for two directions"
        if self.depth and self.hidden_width <= self.one_way:
            return f"hidden_width {self.hidden_width} should be more than the {self.one_way} that it is projected to"
        if self.max_characters < 3:
            return f"max_characters {self.max_characters} leaves nothing of a word between its marks: give 3 or more"
        return None

    @property
    def one_way(self) -> int:
        """Width of each direction."""
        return self.width // 2


PRESETS: dict[str, dict] = {  # parameters of all but the output layer, as published
    "tiny": dict(width=64, hidden_width=64, filters=(16, 16, 32), highways=1, max_characters=20),  # 0.1M
    "mini": dict(width=256, hidden_width=256, filters=(32, 64, 128, 128), highways=1, max_characters=20),  # 1.5M
    "small": dict(width=256, hidden_width=1024, highways=1),  # 13.6M
    "medium": dict(width=512, hidden_width=2048, highways=1),  # 28.0M
    "original": dict(),  # 93.6M
}


class Highway(nn.Module):
    """g ⊙ x + (1 − g) ⊙ ReLU(W x), where the gate g begins open. Srivastava et al. 2015."""

    def __init__(self, width: int):
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.ones_(self.gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(self.transform(x).relu(), x, self.gate(x).sigmoid())


class CharacterCNN(nn.Module):
    """A vector for each word from its characters, computed once for the words of a batch. Kim et al. 2016."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.spelling = nn.Embedding(config.vocabulary, config.max_characters)  # word → characters; never trained
        self.spelling.weight.requires_grad_(False)
        self.spell([""] * config.vocabulary)
        self.characters = nn.Embedding(CHARACTERS, config.character_width)
        sizes = enumerate(config.filters, 1)
        self.convolutions = nn.ModuleList(nn.Conv1d(config.character_width, size, kernel) for kernel, size in sizes)
        total = sum(config.filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(config.highways))
        self.projection = nn.Linear(total, config.one_way)

    @torch.no_grad()
    def spell(self, words: Sequence[str]) -> None:
        """Set the characters of each word of the vocabulary; a longer word is truncated."""
        size = self.spelling.embedding_dim
        rows = [[BEGIN, *(byte + 1 for byte in word.encode()[: size - 2]), END] for word in words]
        padded = [row + [PADDING] * (size - len(row)) for row in rows]
        self.spelling.weight.copy_(torch.tensor(padded, dtype=self.spelling.weight.dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        words, index = tokens.unique(return_inverse=True)
        spelling = self.spelling(words).long()
        spelling = spelling[:, : int((spelling != PADDING).sum(1).max())]
        real = spelling != PADDING
        x = (self.characters(spelling) * real[..., None]).transpose(1, 2)
        windows = [convolution(F.pad(x, (0, kernel))) for kernel, convolution in enumerate(self.convolutions)]
        largest = [each.masked_fill(~real[:, None], -torch.inf).amax(-1) for each in windows]  # that begin in the word
        x = torch.cat(largest, -1).relu()
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)[index]


class BidirectionalLSTM(nn.Module):
    """Two stacks of projected LSTM layers, each with a residual connection from its second layer on."""

    def __init__(self, width: int, hidden_width: int, depth: int, dropout: float):
        super().__init__()
        layer = partial(nn.LSTM, width, hidden_width, proj_size=width, batch_first=True)
        self.forwards = nn.ModuleList(layer() for _ in range(depth))
        self.backwards = nn.ModuleList(layer() for _ in range(depth))
        self.dropout = Dropout(dropout)

    def read(self, layers: nn.ModuleList, x: Tensor, states: RecurrentStates) -> tuple[list[Tensor], RecurrentStates]:
        """The output of each layer of one direction, which reads `x` from the left."""
        outputs = []
        after = []
        for index, (layer, (hidden, cell)) in enumerate(zip(layers, states.layers, strict=True)):
            out, (hidden, cell) = layer(self.dropout(x), (hidden[None], cell[None]))
            x = x + out if index else out
            outputs.append(x)
            after.append((hidden[0], cell[0]))
        length = states.length + x.size(1)
        return outputs, RecurrentStates(tuple(after), length)


class LayerMix(nn.Module):
    """γ Σⱼ softmax(s)ⱼ layerⱼ: Peters et al. 2018, equation 1."""

    def __init__(self, layers: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layers))  # s
        self.scale = nn.Parameter(torch.ones(1))  # γ

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        mixed = sum(share * layer for share, layer in zip(self.weight.softmax(0), layers, strict=True))
        return self.scale * mixed


class Elmo(TextEncoder):
    embed: Any  # a CharacterCNN
    encoder: Any  # a BidirectionalLSTM

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.config = config
        self.pooler = None
        self.embed = CharacterCNN(config)
        self.encoder = BidirectionalLSTM(config.one_way, config.hidden_width, config.depth, config.dropout)
        self.mix = LayerMix(config.depth + 1)

    def spell(self, words: Sequence[str]) -> None:
        """Set the characters of each word of the vocabulary."""
        self.embed.spell(words)

    def initial_states(self, rows: int) -> RecurrentStates:
        config = self.config
        hidden = self.mix.weight.new_zeros(rows, config.one_way)
        cell = self.mix.weight.new_zeros(rows, config.hidden_width)
        return RecurrentStates(((hidden, cell),) * config.depth, 0)

    def layers(self, text: TokenBatch) -> list[Tensor]:
        """The states of all layers, the context-independent one first."""
        with scope("encoder"):
            x = self.embed(text.tokens)
            states = self.initial_states(text.batch_size)
            forwards, _ = self.encoder.read(self.encoder.forwards, x, states)
            backwards, _ = self.encoder.read(self.encoder.backwards, reverse(x, text.lengths), states)
        above = [
            torch.cat([left, reverse(right, text.lengths)], -1) for left, right in zip(forwards, backwards, strict=True)
        ]
        return [torch.cat([x, x], -1), *above]

    def encode(self, text: TokenBatch) -> Tensor:
        return self.mix(self.layers(text))

    def classification_pool(self) -> Pool:
        config = self.config
        return pooling_of(config.pooling, config.width, config.one_way, dropout=config.dropout)


class BidirectionalLM(RecurrentLM):
    """The language model whose layers are ELMo's: both directions have one output layer. Peters et al. 2018, 3.1.

    Used as a causal language model it is the forward one; the backward one is for training.
    """

    def __init__(self, body: Elmo):
        super().__init__()
        self.body = body
        self.config = body.config
        self.dropout = Dropout(body.config.dropout)
        self.output = nn.Linear(body.config.one_way, body.config.vocabulary)

    def initial_states(self, rows: int) -> RecurrentStates:
        return self.body.initial_states(rows)

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        states = state.hypothesis or self.initial_states(len(tokens))
        with scope("decoder"):
            x, states = self._read(self.body.encoder.forwards, tokens, states)
        return x, State(None, states)

    def backward_logits(self, tokens: Tensor) -> Tensor:
        """Logits of what precedes each token, from those after it."""
        x, _ = self._read(self.body.encoder.backwards, tokens.flip(1), self.initial_states(len(tokens)))
        return self.output(x.flip(1))

    def _read(self, layers: nn.ModuleList, tokens: Tensor, states: RecurrentStates) -> tuple[Tensor, RecurrentStates]:
        x = self.body.embed(tokens)
        outputs, states = self.body.encoder.read(layers, x, states)
        return self.dropout(outputs[-1] if outputs else x), states
