"""Prefetched items are the same in the same order; errors are raised where the item is taken."""

import threading
from collections.abc import Iterator
from itertools import count, islice

import pytest

from regard.data.prefetch import prefetched


@pytest.mark.parametrize("size", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_items_and_their_order_are_the_same(size: int, ahead: int) -> None:
    assert list(prefetched(iter(range(size)), ahead)) == list(range(size))


def test_an_endless_stream_is_computed_only_a_little_ahead() -> None:
    computed = []

    def items() -> Iterator[int]:
        for index in count():
            computed.append(threading.current_thread().name)
            yield index

    stream = prefetched(items(), 2)
    assert list(islice(stream, 5)) == [0, 1, 2, 3, 4]
    stream.close()  # type: ignore[attr-defined]
    assert len(computed) <= 5 + 2
    assert all(name.startswith("regard-prefetch") for name in computed)


def test_an_error_is_raised_where_its_item_is_taken() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("third")

    stream = prefetched(items())
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(stream)
