"""What autoregressive networks have in common: a step over many tokens is the teacher-forced pass.

Shapes: tokens (rows, new), x (rows, new, width), logits (rows, new, vocabulary).
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.positions import Rotary
from regard.attention.recording import scope
from regard.layers.blocks import Stack
from regard.layers.embedding import Embedding
from regard.layers.inputs import Batch, TokenBatch
from regard.layers.pytree import State, reorder

EMPTY = State(None, None)  # of a language model, before any token


class AutoregressiveModel(nn.Module, ABC):
    """A family implements `start` and `decode`; steps and the teacher-forced pass follow from them."""

    task = "translate"  # what the network is for, unless a recipe names another task
    input_type: type[Batch] = TokenBatch

    config: Any
    output: nn.Module

    @property
    def max_positions(self) -> int:
        """The longest source or target; of a language model, the longest text in the context at once."""
        return self.config.max_positions

    @property
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`, for example to list the attention sites."""
        source = TokenBatch.minimal(next(self.parameters()).device)
        return source, source.tokens

    @abstractmethod
    def start(self, source: TokenBatch) -> State:
        """The state before the first token."""

    @abstractmethod
    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoder's hidden states at new tokens, (rows, new, width), before the output layer; and the new state."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (rows, new, vocabulary) of what follows each new token."""
        x, state = self.decode(tokens, state)
        return self.output(x), state

    def forward(self, source: TokenBatch, target: Tensor, at: Tensor | None = None) -> Tensor:
        """Teacher-forced logits: (batch, length, vocabulary), or only of the positions where `at` is True."""
        x, _ = self.decode(target, self.start(source))
        return self.output(x if at is None else x[at])


class LanguageModel(AutoregressiveModel):
    """A causal language model: source and target are one text."""

    task = "generate"

    @property
    def dummy_inputs(self) -> tuple:
        return (TokenBatch.minimal(next(self.parameters()).device).tokens,)

    def encode(self, source: TokenBatch) -> Tensor:
        """The hidden state of each position (batch, length, width), from those before it."""
        return self.decode(source.tokens, EMPTY)[0]

    def forward(self, tokens: Tensor, at: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Logits of what follows each token, or only at positions where `at` is True; padding is on the right."""
        x, _ = self.decode(tokens, EMPTY)
        return self.output(x if at is None else x[at])


class RecurrentStates(NamedTuple):
    """The hidden state and the cell of each layer (rows, width), and how many tokens were read."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


class RecurrentLM(LanguageModel):
    """A causal language model of recurrent layers, whose state has one size and cannot be taken back."""

    @abstractmethod
    def initial_states(self, rows: int) -> RecurrentStates:
        """The states before any token."""

    def start(self, source: TokenBatch) -> State:
        """The states after each prompt except its last token, read from one length to the next."""
        counts = source.lengths - 1
        states = self.initial_states(source.batch_size)
        for begin, end in pairwise([0, *counts[counts > 0].unique().tolist()]):
            rows = torch.nonzero(counts >= end)[:, 0]  # those that are so long; the others stay as they are
            _, after = self.decode(source.tokens[rows, begin:end], State(None, reorder(states, rows)))
            layers = [
                (hidden.index_copy(0, rows, new_hidden), cell.index_copy(0, rows, new_cell))
                for (hidden, cell), (new_hidden, new_cell) in zip(states.layers, after.hypothesis.layers, strict=True)
            ]
            states = RecurrentStates(tuple(layers), end)
        return State(None, states)

    def state_length(self, state: State) -> int:
        """The number of tokens read, of the longest prompt where they differ."""
        return state.hypothesis.length if state.hypothesis else 0


class KVCache(NamedTuple):
    """The keys and values of each block, and the tokens they are of.

    Rows of different lengths are padded on the left, with -1 among the tokens; `gap` is the padding of each row.
    """

    memories: tuple[Memory, ...]
    tokens: Tensor
    gap: Tensor | None = None

    def truncate(self, length: int) -> "KVCache":
        """As it was after its first `length` positions."""
        memories = tuple(memory.truncate(length) for memory in self.memories)
        return KVCache(memories, self.tokens[:, :length], self.gap)


class TransformerLM(LanguageModel):
    """A causal language model of Transformer blocks, whose state is a KV cache.

    A text may grow beyond `max_positions`: the context then shifts, and its oldest tokens are dropped.
    """

    embed: Embedding
    decoder: Stack
    rotary: Rotary | None

    def start(self, source: TokenBatch) -> State:
        """The state after each prompt except its last token, which is the first input of `step`."""
        length = int(source.lengths.max())
        gap = length - source.lengths
        if not gap.any():
            return self.prefill(source.tokens[:, : length - 1])
        positions = torch.arange(length - 1, device=source.tokens.device) - gap[:, None]
        tokens = source.tokens.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, -1)
        return self.prefill(tokens, gap)

    def prefill(self, tokens: Tensor, gap: Tensor | None = None) -> State:
        """The state after these tokens; `gap` is the padding before each row."""
        if not tokens.size(1):
            return State(None, KVCache((), tokens, gap))
        return self._decode(tokens, KVCache((), tokens[:, :0], gap))[1]

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        cache = state.hypothesis or KVCache((), tokens[:, :0])
        new = tokens.size(1)
        if self.state_length(state) and self.state_length(state) + new > self.max_positions:
            cache = self._drop_oldest(cache, min(self.max_positions // 2, self.max_positions - new))
        return self._decode(tokens, cache)

    def _decode(self, tokens: Tensor, cache: KVCache) -> tuple[Tensor, State]:
        memories, before, gap = cache
        length = tokens.size(1)
        start = memories[0].end if memories else 0
        real = None
        if gap is not None and start < int(gap.max()):  # only the first positions are padded
            real = torch.arange(start, start + length, device=gap.device) >= gap[:, None]
        with scope("decoder"):
            x = self.embed(tokens if real is None else tokens.clamp(min=0), start, gap)
            rotation = None if self.rotary is None else self.rotary(start, length, gap)
            x, memories = self.decoder(x, real, memories, rotation=rotation)
        return x, State(None, KVCache(memories, torch.cat([before, tokens], 1), gap))

    def _drop_oldest(self, cache: KVCache, length: int) -> KVCache:
        """The last `length` tokens of a text that has become too long.

        With rotary positions, which encode distances only, their keys and values are kept. With learned positions the
        tokens are read again from the first position on.
        """
        tokens = cache.tokens[:, cache.tokens.size(1) - length :]
        if self.rotary is not None:
            return KVCache(tuple(memory.keep_last(length) for memory in cache.memories), tokens, cache.gap)
        return self.prefill(tokens).hypothesis

    def state_length(self, state: State) -> int:
        """The number of tokens in the cache."""
        cache: KVCache | None = state.hypothesis
        return cache.memories[0].length if cache and cache.memories else 0

    def truncate(self, state: State, length: int) -> State:
        """The state after its first `length` tokens."""
        return State(None, state.hypothesis.truncate(length))
