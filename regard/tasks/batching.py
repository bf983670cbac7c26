"""Rows of tokens, grouped into batches of similar length."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import nn

from regard.data.files import is_text
from regard.errors import UserError
from regard.layers.protocols import Network
from regard.layers.recurrent import recurs
from regard.runtime.threads import parallel_map

MAX_TOKENS = 2048  # of a batch, beyond which larger matrix products are not faster
MAX_TOKENS_CPU = 512

T = TypeVar("T")


class EncodedText(NamedTuple):
    """A text, or a pair of texts, as the token ids that the network reads."""

    tokens: list[int]
    segments: Sequence[int] = ()  # token types; empty for one segment
    truncated: bool = False


def check_texts(texts: Sequence[Any], pairs: bool = False) -> None:
    """Reject what is not text; with `pairs`, two texts may be one input."""
    for index, text in enumerate(texts):
        is_pair = pairs and isinstance(text, list | tuple) and len(text) == 2
        if not all(map(is_text, text if is_pair else (text,))):
            raise UserError(f"is not text: {text!r:.60}", index)


def show_text(text: Any) -> str:
    """An input for people: a pair with a line between."""
    return text if isinstance(text, str) else " | ".join(text)


def too_long(text: Any, tokens: int, max_positions: int, index: int | None = None) -> UserError:
    """The error about an input of more tokens than the network accepts."""
    return UserError(
        f"has {tokens} tokens, the model reads at most {max_positions}: {show_text(text)[:60]!r}…; shorten it, or "
        "truncate it with --truncate (truncate=True)",
        index,
    )


def by_length(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of rows in batches of similar length, longest first: what does not fit in memory fails at once."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return (order[start : start + batch_size] for start in range(0, len(order), batch_size))


def by_tokens(lengths: list[int], batch_size: int, max_tokens: int = MAX_TOKENS) -> Iterator[list[int]]:
    """The same by number of tokens: at least `batch_size` rows, and more up to `max_tokens`."""
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if len(batch) >= batch_size and tokens + lengths[index] > max_tokens:
            yield batch
            batch = []
            tokens = 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def encode_batches(
    network: nn.Module | Network, lengths: list[int], batch_size: int, encode: Callable[[list[int]], T]
) -> Iterator[tuple[list[int], T]]:
    """Indices of rows with the result of `encode`: on a CPU small batches, two of them in parallel.

    A recurrent network takes as long for many rows as for few, so it gets large batches.
    """
    if next(network.parameters()).device.type == "cpu" and not recurs(network):
        return parallel_map(encode, by_tokens(lengths, 1, MAX_TOKENS_CPU))
    return ((indices, encode(indices)) for indices in by_tokens(lengths, batch_size))
