"""Texts as rows of tokens, on their way into a network."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from regard.data.files import is_text
from regard.errors import UserError
from regard.layers.recurrent import recurs
from regard.runtime.threads import in_turns

ROOM, CPU_ROOM = 2048, 512  # tokens, above which products over more of them are no faster

T = TypeVar("T")


class Row(NamedTuple):
    """The tokens of an input that are read, of so many that it has."""

    tokens: list[int]
    length: int

    @property
    def cut(self) -> bool:
        return self.length > len(self.tokens)


def check_texts(texts: Sequence[Any], pairs: bool = False) -> None:
    """Refuse what is no text, by its number; where `pairs` are read, two together are one input."""
    for number, text in enumerate(texts, 1):
        two = pairs and isinstance(text, list | tuple) and len(text) == 2
        if not all(map(is_text, text if two else (text,))):
            raise UserError(f"input {number} is not text: {text!r:.60}")


def shown(text: Any) -> str:
    """An input as it is shown: a pair with a line between."""
    return text if isinstance(text, str) else " | ".join(text)


def too_long(text: Any, tokens: int, limit: int) -> UserError:
    """What is said of an input that has more tokens than a network reads."""
    return UserError(
        f"an input has {tokens} tokens, the model reads at most {limit}: {shown(text)[:60]!r}…; shorten it, or cut it "
        "with --truncate (truncate=True)"
    )


def by_length(lengths: list[int], size: int) -> Iterator[list[int]]:
    """Numbers of rows in groups of like length, longest first: what will not fit in memory fails at once."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    return (order[start : start + size] for start in range(0, len(order), size))


def by_room(lengths: list[int], size: int, room: int = ROOM) -> Iterator[list[int]]:
    """The same for networks that read a whole text at once: at least `size` rows, and more while there is room."""
    some: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if len(some) >= size and tokens + lengths[number] > room:
            yield some
            some, tokens = [], 0
        some.append(number)
        tokens += lengths[number]
    if some:
        yield some


def each_room(
    network: torch.nn.Module, lengths: list[int], size: int, read: Callable[[list[int]], T]
) -> Iterator[tuple[list[int], T]]:
    """Numbers of rows with what reading them gives: on a CPU a few rows at a time, and two such groups at once.

    What steps from token to token takes as long for many rows as for few.
    """
    if next(network.parameters()).device.type == "cpu" and not recurs(network):
        return in_turns(read, by_room(lengths, 1, CPU_ROOM))
    return ((numbers, read(numbers)) for numbers in by_room(lengths, size))
