"""The prefix cache: what a conversation's next prompt has in common with the last text is not read again."""

from itertools import takewhile

from torch import Tensor

from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import CausalLM, TruncatableLM
from regard.layers.pytree import State


class PrefixCache:
    """A language model with the state of its last prompt and output, one sequence at a time.

    A search uses it like the network itself. Of a prompt with a known prefix only the rest is computed.
    """

    def __init__(self, network: CausalLM):
        self.network = network
        self.state = EMPTY
        self.tokens: list[int] = []  # those that the state has read
        self.read = 0  # tokens of the last prompt that were new

    def start(self, source: TokenBatch) -> State:
        """As the network's: the state after all tokens of the prompt but the last."""
        known = self.rewind(source.tokens[0, :-1].tolist())
        new = source.tokens[:, known:-1]
        self.read = new.size(1) + 1
        if new.size(1):
            self.decode(new)
        return self.state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, self.state = self.network.step(tokens, state)
        self.tokens += tokens[0].tolist()
        return logits, self.state

    def decode(self, tokens: Tensor) -> Tensor:
        """The hidden states of tokens (1, new) that continue the text."""
        x, self.state = self.network.decode(tokens, self.state)
        self.tokens += tokens[0].tolist()
        return x

    def rewind(self, tokens: list[int]) -> int:
        """Take the state back to the first tokens that the last text has in common with these; gives how many.

        It is 0 where the state cannot be taken back to them, as when the context has dropped the oldest ones.
        """
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.tokens, tokens, strict=False))
        known = sum(1 for _ in same) if self.network.state_length(self.state) == len(self.tokens) else 0
        if known and known < len(self.tokens) and isinstance(self.network, TruncatableLM):
            self.state = self.network.truncate(self.state, known)
        elif known < len(self.tokens):
            known = 0
            self.state = EMPTY
        self.tokens = self.tokens[:known]
        return known
