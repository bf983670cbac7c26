"""Several Python threads at work, each with its share of torch's threads.

torch divides every matrix product among the cores and waits for the last of them; where they are small, this takes 10 %
of the time and more. Independent tasks, each on cores of its own, wait only once.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import TypeVar

import torch

WORKERS = 2  # more would wait for the interpreter lock

NAME = "regard-worker"

I = TypeVar("I")  # noqa: E741

T = TypeVar("T")


def run_parallel(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The results of the tasks. The calling thread runs the first; each has as many torch threads as the caller."""
    if len(tasks) < 2 or not _may_use_workers():
        return [task() for task in tasks]
    futures = [_submit(task, len(tasks) - 1) for task in tasks[1:]]
    try:
        return [tasks[0](), *[future.result() for future in futures]]
    finally:
        wait(futures)  # no worker is left running, also after an error


def parallel_map(function: Callable[[I], T], items: Iterable[I]) -> Iterator[tuple[I, T]]:
    """Each item with its result, in order. Workers and the calling thread take the next item as they become free."""
    inputs = list(items)
    if not threads_divide_evenly() or len(inputs) < WORKERS or not _may_use_workers():
        for item in inputs:
            yield item, function(item)
        return
    queue = iter(enumerate(inputs))  # shared by all threads
    results: dict[int, T] = {}
    yielded = 0

    def work() -> None:
        try:
            for index, item in queue:
                results[index] = function(item)
        finally:
            _exhaust(queue)  # after an error, no thread takes another item

    with torch_threads(torch.get_num_threads() // WORKERS):
        futures = [_submit(work, WORKERS - 1) for _ in range(WORKERS - 1)]
        try:
            for index, item in queue:
                results[index] = function(item)
                while yielded in results:
                    yield inputs[yielded], results.pop(yielded)
                    yielded += 1
            for future in futures:
                if not future.cancel():  # a worker that is still busy for another caller is not waited for
                    future.result()
            for index in range(yielded, len(inputs)):
                yield inputs[index], results.pop(index)
        finally:
            _exhaust(queue)
            wait([future for future in futures if not future.cancel()])


def threads_divide_evenly() -> bool:
    """Whether all workers can have equally many of torch's threads."""
    return torch.get_num_threads() % WORKERS == 0


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads of the calling thread.

    Not for short sections: OpenMP threads that become idle spin for a while, and slow down those at work.
    """
    before = torch.get_num_threads()
    _set_threads(count)
    try:
        yield
    finally:
        _set_threads(before)


def _set_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _submit(task: Callable[[], T], workers: int) -> Future[T]:
    """Run a task in a pool of `workers`, with the caller's torch threads, gradient mode and context variables."""
    threads = torch.get_num_threads()
    gradients = torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()

    def run() -> T:
        _set_threads(threads)  # this and the modes are settings of each thread
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return task()

    return _pool(workers).submit(copy_context().run, run)


def _may_use_workers() -> bool:
    """Not from a worker itself, nor under autocast, which is a setting of one thread."""
    return not threading.current_thread().name.startswith(NAME) and not torch.is_autocast_enabled("cpu")


def _exhaust(items: Iterator[object]) -> None:
    for _ in items:
        pass


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, NAME)


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
