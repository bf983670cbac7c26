"""What every network that writes has in common: a step over many tokens is the whole pass."""

from torch import Tensor, nn

from regard.inputs.batch import Sequences
from regard.layers.state import State


class Generator(nn.Module):
    """A family says how it starts and how it advances; steps and the teacher-forced pass follow from that."""

    output: nn.Linear

    def start(self, source: Sequences) -> State:
        """What is known before the first token."""
        raise NotImplementedError

    def advance(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoder's states after new tokens, (rows, new, width), ready for the output; and what is known then."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (rows, new, vocabulary) for what follows each new token."""
        x, state = self.advance(tokens, state)
        return self.output(x), state

    def forward(self, source: Sequences, target: Tensor, at: Tensor | None = None) -> Tensor:
        """Teacher-forced logits, all steps at once: (batch, length, vocabulary), or only places where `at` is True."""
        x, _ = self.advance(target, self.start(source))
        return self.output(x if at is None else x[at])
