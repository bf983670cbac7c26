"""The prefix cache: what a conversation's next prompt has in common with the last text is not read again."""

from torch import Tensor

from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import CausalLM, TruncatableLM
from regard.layers.pytree import State


class PrefixCache:
    """A language model that keeps the state of the text it last read or wrote, one text at a time.

    A search uses it like the network itself. Of a prompt with a known prefix only the rest is read.
    """

    def __init__(self, network: CausalLM):
        self.network = network
        self.state = EMPTY
        self.tokens: list[int] = []  # those that the state has read
        self.read = 0  # tokens of the last prompt that were new

    def start(self, source: TokenBatch) -> State:
        """As the network's: the prompt is read except its last token."""
        tokens = source.tokens[0, :-1].tolist()
        known = self._common_prefix(tokens)
        self.read = len(tokens) - known + 1
        if not known:
            self.state = EMPTY
        elif known < len(self.tokens):
            assert isinstance(self.network, TruncatableLM)
            self.state = self.network.truncate(self.state, known)
        if known < len(tokens):
            _, self.state = self.network.decode(source.tokens[:, known:-1], self.state)
        self.tokens = tokens
        return self.state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, self.state = self.network.step(tokens, state)
        self.tokens = self.tokens + tokens[0].tolist()
        return logits, self.state

    def _common_prefix(self, tokens: list[int]) -> int:
        """How many first tokens are those of the last text; 0 where the state cannot be taken back to them."""
        if self.network.state_length(self.state) < len(self.tokens):  # the context dropped the oldest ones
            return 0
        pairs = enumerate(zip(self.tokens, tokens, strict=False))
        common = next((index for index, (old, new) in pairs if old != new), min(len(self.tokens), len(tokens)))
        return common if common == len(self.tokens) or isinstance(self.network, TruncatableLM) else 0
