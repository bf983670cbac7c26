"""Parallel threads: the same results as one after the other, also after errors, and thread counts are restored."""

import os
import signal
import threading
import time
from contextvars import ContextVar
from functools import partial

import pytest
import torch

from regard.runtime import threads as module
from regard.runtime.threads import parallel_map, run_parallel, torch_threads


def test_results_are_in_order_and_the_caller_computes_the_first() -> None:
    names = run_parallel([lambda: threading.current_thread().name for _ in range(3)])
    assert names[0] == threading.current_thread().name
    assert all(name.startswith(module.NAME) for name in names[1:])
    assert run_parallel([partial(pow, number, 2) for number in range(5)]) == [0, 1, 4, 9, 16]
    assert run_parallel([]) == [] and run_parallel([lambda: 7]) == [7]


def test_micro_batches_are_computed_at_the_same_time() -> None:
    """Each waits until the other has come, which one after the other never would."""
    both = threading.Barrier(2, timeout=10)
    assert sorted(run_parallel([both.wait, both.wait])) == [0, 1]


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_error_is_raised_after_all_workers_have_ended(wrong: int) -> None:
    ended: list[int] = []

    def piece(number: int) -> None:
        if number == wrong:
            raise ValueError(number)
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match=str(wrong)):
        run_parallel([partial(piece, number) for number in range(3)])
    assert sorted(ended) == [number for number in range(3) if number != wrong]
    assert run_parallel([lambda: 1, lambda: 2]) == [1, 2]


def test_a_worker_starts_no_worker() -> None:
    def inner() -> set[str]:
        return set(run_parallel([lambda: threading.current_thread().name for _ in range(3)]))

    _, helper = run_parallel([inner, inner])
    assert len(helper) == 1


def test_workers_have_the_callers_threads_and_context() -> None:
    variable = ContextVar("variable", default=0)
    variable.set(3)

    def seen() -> tuple[int, ...]:
        return torch.get_num_threads(), variable.get(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert run_parallel([seen, seen]) == [(threads, 3, True, False)] * 2
        with torch.no_grad():
            assert run_parallel([seen, seen]) == [(threads, 3, False, False)] * 2
        with torch.inference_mode():
            assert run_parallel([seen, seen]) == [(threads, 3, False, True)] * 2
        assert torch.get_num_threads() == threads


def test_under_autocast_all_is_done_by_the_caller() -> None:
    torch.set_num_threads(2)
    with torch.autocast("cpu", torch.bfloat16):
        names = run_parallel([lambda: threading.current_thread().name] * 2)
        names += [name for _, name in parallel_map(lambda _: threading.current_thread().name, range(4))]
    assert set(names) == {threading.current_thread().name}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_has_its_own_workers() -> None:
    run_parallel([lambda: 1, lambda: 2])
    child = os.fork()
    if not child:
        os._exit(0 if run_parallel([lambda: 1, lambda: 2]) == [1, 2] else 1)
    ended = time.monotonic() + 20
    while not (status := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < ended:
        time.sleep(0.01)
    if not status[0]:
        os.kill(child, signal.SIGKILL)
    assert status == (child, 0)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_a_parallel_map_yields_in_order(threads: int, count: int) -> None:
    torch.set_num_threads(threads)

    def work(number: int) -> int:
        time.sleep(0.01 * (number % 3))
        return number * number

    assert list(parallel_map(work, iter(range(count)))) == [(number, number * number) for number in range(count)]
    assert torch.get_num_threads() == threads


def test_in_a_parallel_map_two_are_at_work_with_half_the_threads_each() -> None:
    torch.set_num_threads(4)
    both = threading.Barrier(2, timeout=10)
    found = [count for _, count in parallel_map(lambda _: both.wait() >= 0 and torch.get_num_threads(), range(4))]
    assert found == [2] * 4
    with torch_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("mine", [True, False])
def test_after_an_error_nothing_is_taken_any_more(mine: bool) -> None:
    """Whether the caller's piece was wrong or the helper's: the other ends what it has begun."""
    torch.set_num_threads(2)
    both, begun = threading.Barrier(2, timeout=10), []

    def work(number: int) -> None:
        begun.append(number)
        both.wait()
        if (threading.current_thread() is threading.main_thread()) == mine:
            raise ValueError(number)
        time.sleep(0.2)  # long enough for the other to say so

    with pytest.raises(ValueError):
        list(parallel_map(work, range(50)))
    assert sorted(begun) == [0, 1]
    assert torch.get_num_threads() == 2


def test_an_abandoned_iterator_stops_the_work() -> None:
    torch.set_num_threads(2)
    first, begun = threading.Event(), []

    def work(number: int) -> None:
        begun.append(number)
        if number:
            first.wait(10)
            time.sleep(0.02)  # so that not all is done before the caller stops

    turns = parallel_map(work, range(50))
    next(turns)
    first.set() if len(begun) > 1 else None
    threading.Timer(0.2, first.set).start()
    turns.close()  # type: ignore[attr-defined]
    before = len(begun)
    time.sleep(0.05)
    assert len(begun) == before < 50
    assert torch.get_num_threads() == 2


def test_a_caller_does_not_wait_for_a_busy_worker() -> None:
    """A long job of one thread does not hold up a short one of another."""
    torch.set_num_threads(2)
    leave, entered = threading.Event(), threading.Barrier(3, timeout=10)

    def long(_: int) -> None:
        entered.wait()
        leave.wait(10)

    other = threading.Thread(target=lambda: (torch.set_num_threads(2), list(parallel_map(long, range(2)))))
    other.start()
    entered.wait()
    assert [result for _, result in parallel_map(lambda number: number, range(5))] == list(range(5))
    assert other.is_alive()
    leave.set()
    other.join()
