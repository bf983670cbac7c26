"""A conversation grows at its end: what was read of it for one answer need not be read again for the next."""

from typing import Any

from torch import Tensor

from regard.layers.autoregressive import NOTHING, CausalLM, KVCache
from regard.layers.inputs import TokenBatch
from regard.layers.state import State


class PrefixCache:
    """A language model that knows the text it last read or wrote, one text at a time.

    To a search it is a generator like the network itself: of a prompt that begins alike, it reads only what is new.
    """

    def __init__(self, network: CausalLM):
        self.network = network
        self.past: KVCache | None = None
        self.read = 0  # tokens of the last prompt that were new

    def start(self, source: TokenBatch) -> State:
        """As the network's own: the prompt is read but for its last token."""
        tokens = source.tokens[:, :-1]
        known = self._known(tokens)
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

    def _known(self, tokens: Tensor) -> int:
        """How many first tokens of a text are those of the last one; none, if its own first ones were forgotten."""
        if self.past is None or not self.past.memories or self.past.memories[0].start:
            return 0
        length = min(self.past.tokens.size(1), tokens.size(1))
        other = (self.past.tokens[0, :length] != tokens[0, :length]).nonzero()
        return int(other[0]) if len(other) else length
