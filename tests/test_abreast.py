"""Work done abreast: the same results as one after the other, whatever goes wrong, and threads as they were."""

import threading
import time
from contextvars import ContextVar
from functools import partial

import pytest
import torch

from regard import abreast as module
from regard.abreast import abreast, spread, use_threads


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
    for threads in (1, 2):
        use_threads(threads)
        assert abreast([lambda: (torch.get_num_threads(), told.get())] * 2) == [(threads, 3)] * 2
        assert torch.get_num_threads() == threads
    abreast([lambda: told.set(4), lambda: told.set(5)][1:] * 2)
    use_threads(1)


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
