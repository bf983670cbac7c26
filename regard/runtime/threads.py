"""Work done abreast: several threads, each with its share of torch's.

torch divides every product among the cores and waits for the last of them; where products are small, dividing and
waiting take a tenth of the time and more. Whole pieces of work, each on cores of its own, wait only once.
"""

import os
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
    """What each piece gives. The first is done by the calling thread; each has as many of torch's threads as that."""
    if len(pieces) < 2 or not _helped():
        return [piece() for piece in pieces]
    others = [_lend(piece, len(pieces) - 1) for piece in pieces[1:]]
    try:
        return [pieces[0](), *[other.result() for other in others]]
    finally:
        wait(others)  # nobody is left at work, whatever went wrong


def in_turns(work: Callable[[I], T], items: Iterable[I]) -> Iterator[tuple[I, T]]:
    """Each item with what work on it gives, in order. Where there are cores for two, both take what comes next."""
    given = list(items)
    if not divisible() or len(given) < PIECES or not _helped():
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

    with with_threads(torch.get_num_threads() // PIECES):
        others = [_lend(go_on, PIECES - 1) for _ in range(PIECES - 1)]
        try:
            for number, item in left:
                found[number] = work(item)
                while told in found:
                    yield given[told], found.pop(told)
                    told += 1
            for other in others:
                if not other.cancel():  # who helps somebody else until now need not come any more
                    other.result()
            for number in range(told, len(given)):
                yield given[number], found.pop(number)
        finally:
            _exhaust(left)
            wait([other for other in others if not other.cancel()])


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


def divisible() -> bool:
    """Whether torch's threads can be shared out without a rest."""
    return torch.get_num_threads() % PIECES == 0


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many of torch's threads for the calling one while this lasts.

    Not for a moment: threads of torch's that have nothing to do any more turn round for a while before they sleep, and
    are in the way of those at work.
    """
    before = torch.get_num_threads()
    _use(count)
    try:
        yield
    finally:
        _use(before)


def _use(threads: int) -> None:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _lend(piece: Callable[[], T], helpers: int) -> Future[T]:
    """A piece done by one of so many helpers, with the caller's count of torch's threads, its modes and variables."""
    threads, gradients, inference = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def helped() -> T:
        _use(threads)  # torch remembers this, and what follows, for each thread
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return piece()

    return _helpers(helpers).submit(copy_context().run, helped)


def _helped() -> bool:
    """Whether others may do it too: helpers have nobody to ask, and what autocast rounds is one thread's own."""
    return not threading.current_thread().name.startswith(NAME) and not torch.is_autocast_enabled("cpu")


def _exhaust(items: Iterator[object]) -> None:
    for _ in items:
        pass


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, NAME)


if hasattr(os, "register_at_fork"):  # threads stay behind
    os.register_at_fork(after_in_child=_helpers.cache_clear)
