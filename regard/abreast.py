"""Work done abreast: several threads, each with its share of the cores.

torch divides every product among the cores and waits for the last of them; where products are small, dividing and
waiting take a tenth of the time and more. Whole pieces of work, one a core, wait for each other only once.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

MANY = 1 << 21  # numbers: to go over fewer takes no longer than to ask for help
NAME = "abreast"

T = TypeVar("T")


def abreast(pieces: Sequence[Callable[[], T]]) -> list[T]:
    """What each piece gives. The first is done by the calling thread; each has as many of torch's threads as that."""
    if len(pieces) < 2 or threading.current_thread().name.startswith(NAME):  # helpers have nobody to ask
        return [piece() for piece in pieces]
    threads = torch.get_num_threads()

    def helped(piece: Callable[[], T]) -> T:
        use_threads(threads)  # torch remembers it for each thread
        return piece()

    helpers = _helpers(len(pieces) - 1)
    others = [helpers.submit(copy_context().run, helped, piece) for piece in pieces[1:]]
    try:
        return [pieces[0](), *[other.result() for other in others]]
    finally:
        wait(others)  # nobody is left at work, whatever went wrong


def spread(tensors: Sequence[Tensor], pieces: int, work: Callable[[list[Tensor]], T]) -> list[T]:
    """What work on parts of the tensors gives, about as many numbers in each; of few numbers, one part is all."""
    if sum(map(Tensor.numel, tensors)) < MANY:
        return [work(list(tensors))] if tensors else []
    parts: list[list[Tensor]] = [[] for _ in range(pieces)]
    sizes = [0] * pieces
    for tensor in sorted(tensors, key=Tensor.numel, reverse=True):
        least = sizes.index(min(sizes))
        parts[least].append(tensor)
        sizes[least] += tensor.numel()
    return abreast([partial(work, part) for part in parts if part])


def use_threads(count: int) -> None:
    """So many threads for each of torch's operations; torch forgets what it has prepared whenever it is told."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, NAME)
