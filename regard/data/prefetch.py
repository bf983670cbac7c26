"""Batches prepared by a background thread while a device computes."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

AHEAD = 2  # items that are computed before they are taken

END = object()


def prefetched(items: Iterator[T], ahead: int = AHEAD) -> Iterator[T]:
    """The same items in the same order, computed ahead. Only for items that do not depend on when they are computed."""
    with ThreadPoolExecutor(1, "regard-prefetch") as pool:
        futures = deque(pool.submit(next, items, END) for _ in range(ahead))
        while (item := futures.popleft().result()) is not END:
            futures.append(pool.submit(next, items, END))
            yield item  # type: ignore[misc]
