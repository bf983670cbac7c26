"""The interfaces of networks: what decoding, tasks and training use of them, whatever they are made of."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from regard.layers.inputs import Batch
from regard.layers.pytree import State


class Network(Protocol):
    """Any network: an nn.Module that declares its task, its input and its context."""

    task: str
    training: bool

    @property
    def config(self) -> Any: ...

    @property
    def input_type(self) -> type[Batch]: ...

    @property
    def max_positions(self) -> int:
        """The longest input sequence."""
        ...

    @property
    def dummy_inputs(self) -> tuple:
        """The smallest arguments of `forward`."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def __call__(self, *inputs: Any, **options: Any) -> Any: ...


class EncoderModel(Network, Protocol):
    """A network with a state for each position of its input."""

    def encode(self, inputs: Any) -> Tensor:
        """(batch, length, width)."""
        ...


class Decodable(Protocol):
    """What can be searched: a state before the first token, and steps that give logits and the next state."""

    def start(self, source: Any) -> State: ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


@runtime_checkable
class Seq2SeqModel(EncoderModel, Decodable, Protocol):
    """An encoder–decoder. `forward(source, target)` gives the teacher-forced logits."""


@runtime_checkable
class CausalLM(Network, Decodable, Protocol):
    """A causal language model. Its state may be a KV cache, the states of an RNN, or anything else of tensors.

    `start` reads each prompt except its last token; `decode` and `step` accept `EMPTY` as the state before all tokens.
    """

    output: nn.Module

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """As `step`, without the output layer: hidden states (rows, new, width)."""
        ...

    def state_length(self, state: State) -> int:
        """The number of tokens in a state: fewer than its inputs if the context has dropped the oldest."""
        ...


@runtime_checkable
class TruncatableLM(CausalLM, Protocol):
    """A causal language model whose state can be taken back, as speculative decoding needs it."""

    def truncate(self, state: State, length: int) -> State:
        """The state as it was after its first `length` tokens."""
        ...
