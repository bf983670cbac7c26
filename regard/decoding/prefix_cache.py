"""A prefix cache: of a conversation, only what was added since the last answer is read."""

from typing import Any

from torch import Tensor

from regard.layers.autoregressive import NOTHING, CausalLM, KVCache
from regard.layers.inputs import TokenBatch
from regard.layers.state import State


class PrefixCache:
    """A causal language model that remembers the text it last read or wrote, one text at a time.

    It is searched like the network: of a prompt with the same beginning, it reads only what is new.
    """

    def __init__(self, network: CausalLM):
        self.network = network
        self.past: KVCache | None = None
        self.read = 0  # tokens of the last prompt that were new

    def start(self, source: TokenBatch) -> State:
        """As the network's: the prompt is read except for its last token."""
        tokens = source.tokens[:, :-1]
        known = self._common_prefix(tokens)
        self.read = tokens.size(1) - known + 1
        state = State(None, self.past.truncate(known)) if self.past is not None and known else NOTHING
        if known < tokens.size(1):
            _, state = self.network.advance(tokens[:, known:], state)
        self.past = state.hypothesis
        return state

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, State]:
        logits, state = self.network.step(tokens, state)
        self.past = state.hypothesis
        return logits, state

    def _common_prefix(self, tokens: Tensor) -> int:
        """The number of first tokens that a text shares with the last one; 0 if those were dropped from the cache."""
        if self.past is None or not self.past.memories or self.past.memories[0].start:
            return 0
        length = min(self.past.tokens.size(1), tokens.size(1))
        different = (self.past.tokens[0, :length] != tokens[0, :length]).nonzero()
        return int(different[0]) if len(different) else length
