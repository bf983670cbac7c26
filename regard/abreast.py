"""Work done abreast: several threads, each with its share of the cores.

torch divides every product among the cores and waits for the last of them; where products are small, dividing and
waiting take a tenth of the time and more. Whole pieces of work, one a core, wait for each other only once.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

PIECES = 2  # at once: more would wait for each other's turn in Python
MANY = 1 << 21  # numbers: to go over fewer takes no longer than to ask for help
NAME = "abreast"

I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


def abreast(pieces: Sequence[Callable[[], T]]) -> list[T]:
    """What each piece gives. The first is done by the calling thread."""
    if len(pieces) < 2 or _helping():  # helpers have nobody to ask
        return [piece() for piece in pieces]
    others = [_lend(piece, len(pieces) - 1) for piece in pieces[1:]]
    try:
        return [pieces[0](), *[other.result() for other in others]]
    finally:
        wait(others)  # nobody is left at work, whatever went wrong


def in_turns(work: Callable[[I], T], items: Iterable[I]) -> Iterator[tuple[I, T]]:
    """Each item with what work on it gives, in order. Where there are cores for two, both take what comes next."""
    given, threads = list(items), torch.get_num_threads()
    if threads < PIECES or len(given) < PIECES or _helping():
        for item in given:
            yield item, work(item)
        return
    left, found, told = iter(enumerate(given)), dict[int, T](), 0

    def go_on() -> None:
        try:
            for number, item in left:
                found[number] = work(item)
        finally:
            _exhaust(left)  # where this went wrong, nobody goes on

    with with_threads(threads // PIECES):
        others = [_lend(go_on, PIECES - 1) for _ in range(PIECES - 1)]
        try:
            for number, item in left:
                found[number] = work(item)
                while told in found:
                    yield given[told], found.pop(told)
                    told += 1
            for other in others:
                other.result()
            for number in range(told, len(given)):
                yield given[number], found.pop(number)
        finally:
            _exhaust(left)
            wait(others)


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


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many while this lasts."""
    before = torch.get_num_threads()
    use_threads(count)
    try:
        yield
    finally:
        use_threads(before)


def _lend(piece: Callable[[], T], helpers: int) -> Future[T]:
    """A piece done by one of so many helpers, with the caller's count of torch's threads, its modes and variables."""
    threads, gradients, inference = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def helped() -> T:
        use_threads(threads)  # torch remembers this, and what follows, for each thread
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return piece()

    return _helpers(helpers).submit(copy_context().run, helped)


def _helping() -> bool:
    return threading.current_thread().name.startswith(NAME)


def _exhaust(items: Iterator[object]) -> None:
    for _ in items:
        pass


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, NAME)
