"""What every network that writes has in common: a step over many tokens is the whole pass.

Shapes: tokens (rows, new), x (rows, new, width), logits (rows, new, vocabulary).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.core import Memory
from regard.attention.positions import Rotary
from regard.attention.trace import scope
from regard.layers.blocks import Stack
from regard.layers.embedding import Embedding
from regard.layers.inputs import TokenBatch
from regard.layers.state import State


class Generator(nn.Module):
    """A family says how it starts and how it advances; steps and the teacher-forced pass follow from that."""

    task = "translate"  # what the network is for, unless a recipe names another task
    input_type = TokenBatch

    output: nn.Module

    @property
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`, for example to list the attention sites."""
        source = self.input_type.minimal(next(self.parameters()).device)
        return source, source.tokens

    def start(self, source: TokenBatch) -> State:
        """What is known before the first token."""
        raise NotImplementedError

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoder's states after new tokens, (rows, new, width), ready for the output; and what is known then."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (rows, new, vocabulary) for what follows each new token."""
        x, state = self.advance(tokens, state)
        return self.output(x), state

    def forward(self, source: TokenBatch, target: Tensor, at: Tensor | None = None) -> Tensor:
        """Teacher-forced logits, all steps at once: (batch, length, vocabulary), or only places where `at` is True."""
        x, _ = self.advance(target, self.start(source))
        return self.output(x if at is None else x[at])


class KVCache(NamedTuple):
    """A text between two steps: what each block remembers of it, and its tokens.

    Rows of different lengths have their padding before them, -1 among the tokens: `gap` says how much.
    """

    memories: tuple[Memory, ...]
    tokens: Tensor
    gap: Tensor | None = None

    def truncate(self, length: int) -> "KVCache":
        """As it was after its first `length` places."""
        return KVCache(tuple(memory.truncate(length) for memory in self.memories), self.tokens[:, :length], self.gap)


NOTHING = State(None, None)


class CausalLM(Generator):
    """A network that goes on with what it reads: source and target are one text.

    A text may grow beyond `max_positions`. What is read then no longer holds all of it: the older half is forgotten.
    """

    task = "generate"

    embed: Embedding
    decoder: Stack
    rotary: Rotary | None

    @property
    def dummy_inputs(self) -> tuple:
        return (self.input_type.minimal(next(self.parameters()).device).tokens,)

    @property
    def max_positions(self) -> int:
        """The longest text that is seen at once."""
        raise NotImplementedError

    def start(self, source: TokenBatch) -> State:
        """Reads each prompt but for its last token, which is the first to be given to `step`."""
        tokens, lengths = source.tokens, source.lengths
        longest = int(lengths.max())
        gap = longest - lengths
        if not gap.any():
            return self.read(tokens[:, : longest - 1])
        places = torch.arange(longest - 1, device=tokens.device) - gap[:, None]
        return self.read(tokens.gather(1, places.clamp(min=0)).masked_fill(places < 0, -1), gap)

    def read(self, tokens: Tensor, gap: Tensor | None = None) -> State:
        """The state after these tokens; `gap` counts those that are padding before each row."""
        if not tokens.size(1):
            return State(None, KVCache((), tokens, gap))
        return self._advance(tokens, KVCache((), tokens[:, :0], gap))[1]

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        past: KVCache | None = state.hypothesis
        if past is None:
            past = KVCache((), tokens[:, :0])
        if past.memories and past.memories[0].length + tokens.size(1) > self.max_positions:
            past = self.forget(past, min(self.max_positions // 2, self.max_positions - tokens.size(1)))
        return self._advance(tokens, past)

    def _advance(self, tokens: Tensor, past: KVCache) -> tuple[Tensor, State]:
        (memories, before, gap), length = past, tokens.size(1)
        start = memories[0].end if memories else 0
        real = None
        if gap is not None and start < (first := int(gap.max())):  # only what comes first has padding in it
            real = (torch.arange(start, start + length, device=gap.device) >= gap[:, None]) if first else None
        with scope("decoder"):
            x = self.embed(tokens if real is None else tokens.clamp(min=0), start, gap)
            rotation = None if self.rotary is None else self.rotary(start, length, gap)
            x, memories = self.decoder(x, real, memories, rotation=rotation)
        return x, State(None, KVCache(memories, torch.cat([before, tokens], 1), gap))

    def forget(self, past: KVCache, length: int) -> KVCache:
        """The last `length` tokens of a text that has become too long.

        Where places are told apart by their distance, what was remembered stays as it is; where each has a vector of
        its own, the tokens are read again from the first place on.
        """
        tokens = past.tokens[:, past.tokens.size(1) - length :]
        if self.rotary is not None:
            return KVCache(tuple(memory.keep_last(length) for memory in past.memories), tokens, past.gap)
        return self.read(tokens).hypothesis

    def encode(self, source: TokenBatch) -> Tensor:
        """The state of each place (batch, length, width), from what stands before it."""
        return self.advance(source.tokens, NOTHING)[0]

    def forward(self, tokens: Tensor, at: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Logits for what follows each token, or only those places where `at` is True; padding stands behind."""
        x, _ = self.advance(tokens, NOTHING)
        return self.output(x if at is None else x[at])
