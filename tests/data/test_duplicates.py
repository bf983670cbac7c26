"""Leaked samples: exactly those that both splits have, in memory of eight bytes a sample."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.splits.hashed import digests, duplicates


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=3)))
def test_a_duplicate_is_in_both(train: list[str], other: list[str]) -> None:
    leaked = duplicates(digests(train), digests(other))
    assert leaked.tolist() == [text in train for text in other]


def test_text_and_its_bytes_are_the_same_sample() -> None:
    assert digests(["Zoë", ""]).tolist() == digests(["Zoë".encode(), b""]).tolist()
    assert digests([]).dtype == np.uint64


def test_a_sample_takes_eight_bytes() -> None:
    count = 20_011
    tracemalloc.start()
    hashes = digests(f"{number} " * 50 for number in range(count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert hashes.nbytes == 8 * count
    assert peak < 3 * 8 * count + 100_000  # an array that grows is copied
