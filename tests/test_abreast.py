"""Work done abreast: the same results as one after the other, whatever goes wrong, and threads as they were."""

import threading
import time
from contextvars import ContextVar
from functools import partial

import pytest
import torch

from regard import abreast as module
from regard.abreast import abreast, in_turns, spread, use_threads, with_threads


def test_results_stand_in_order_and_the_first_is_the_callers_own() -> None:
    names = abreast([lambda: threading.current_thread().name for _ in range(3)])
    assert names[0] == threading.current_thread().name
    assert all(name.startswith(module.NAME) for name in names[1:])
    assert abreast([partial(pow, number, 2) for number in range(5)]) == [0, 1, 4, 9, 16]
    assert abreast([]) == [] and abreast([lambda: 7]) == [7]


def test_pieces_are_done_at_the_same_time() -> None:
    """Each waits until the other has come, which one after the other never would."""
    both = threading.Barrier(2, timeout=10)
    assert sorted(abreast([both.wait, both.wait])) == [0, 1]


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_error_comes_out_when_nobody_is_at_work_any_more(wrong: int) -> None:
    ended: list[int] = []

    def piece(number: int) -> None:
        if number == wrong:
            raise ValueError(number)
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match=str(wrong)):
        abreast([partial(piece, number) for number in range(3)])
    assert sorted(ended) == [number for number in range(3) if number != wrong and (wrong or number)]
    assert abreast([lambda: 1, lambda: 2]) == [1, 2]


def test_a_helper_asks_nobody_for_help() -> None:
    def inner() -> set[str]:
        return set(abreast([lambda: threading.current_thread().name for _ in range(3)]))

    _, helper = abreast([inner, inner])
    assert len(helper) == 1


def test_helpers_have_the_callers_threads_and_what_it_has_set() -> None:
    told = ContextVar("told", default=0)
    told.set(3)

    def seen() -> tuple[int, ...]:
        return torch.get_num_threads(), told.get(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    for threads in (1, 2):
        use_threads(threads)
        assert abreast([seen, seen]) == [(threads, 3, True, False)] * 2
        with torch.no_grad():
            assert abreast([seen, seen]) == [(threads, 3, False, False)] * 2
        with torch.inference_mode():
            assert abreast([seen, seen]) == [(threads, 3, False, True)] * 2
        assert torch.get_num_threads() == threads


@pytest.mark.parametrize("sizes", [[], [3], [5, 900, 20, 400], [100] * 7])
def test_each_tensor_is_worked_on_once(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.zeros(size) for size in sizes]
    assert len(spread(tensors, 2, len)) == min(1, len(sizes))
    monkeypatch.setattr(module, "MANY", 0)
    counts = spread(tensors, 2, lambda part: [each.add_(1).numel() for each in part])
    assert all(bool((tensor == 1).all()) for tensor in tensors)
    assert sorted(size for part in counts for size in part) == sorted(sizes)
    if len(sizes) > 4:
        assert abs(sum(counts[0]) - sum(counts[1])) <= 100


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_what_is_done_in_turns_comes_in_order(threads: int, count: int) -> None:
    use_threads(threads)

    def work(number: int) -> int:
        time.sleep(0.01 * (number % 3))
        return number * number

    assert list(in_turns(work, iter(range(count)))) == [(number, number * number) for number in range(count)]
    assert torch.get_num_threads() == threads


def test_in_turns_two_are_at_work_with_half_the_threads_each() -> None:
    use_threads(4)
    both = threading.Barrier(2, timeout=10)
    found = [told for _, told in in_turns(lambda _: both.wait() >= 0 and torch.get_num_threads(), range(4))]
    assert found == [2] * 4
    with with_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("wrong", [0, 1, 5])
def test_after_an_error_nothing_is_taken_any_more(wrong: int) -> None:
    use_threads(2)
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        time.sleep(0.01)
        if number == wrong:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match=str(wrong)):
        list(in_turns(work, range(50)))
    assert len(begun) <= wrong + 4
    assert torch.get_num_threads() == 2


def test_who_stops_listening_stops_the_work() -> None:
    use_threads(2)
    begun: list[int] = []
    turns = in_turns(lambda number: begun.append(number) or time.sleep(0.01), range(50))
    next(turns)
    turns.close()  # type: ignore[attr-defined]
    assert len(begun) <= 5
    assert torch.get_num_threads() == 2
