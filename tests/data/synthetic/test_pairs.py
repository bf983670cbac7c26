"""Invariants of synthetic data: correct answers, pure streams, splits without leaks."""

import re
import subprocess
import sys
from datetime import date
from itertools import islice

import pytest

from regard.data.synthetic.pairs import GENERATORS, MONTHS, SPLITS, WEEKDAYS, ordinal
from regard.errors import UserError

NAMES = sorted(GENERATORS)


def read_date(text: str) -> date:
    """An independent reader of the stated conventions, which also insists on the right weekday and ordinal."""
    if iso := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", text):
        return date(*map(int, iso.groups()))
    words = re.findall(r"\d+(?:st|nd|rd|th)?|[a-z]+", text.lower())
    months = [number for number, name in enumerate(MONTHS, 1) for word in words if word in _long_or_short(name)]
    weekdays = [number for number, name in enumerate(WEEKDAYS) for word in words if word in _long_or_short(name)]
    numbers = [int(re.sub(r"\D", "", word)) for word in words if word[0].isdigit()]
    day, month, year = (numbers[0], months[0], numbers[1]) if months else numbers
    if year < 100:
        year += 1900 if year >= 50 else 2000
    found = date(year, month, day)
    assert weekdays in ([], [found.weekday()]), text
    assert all(word == ordinal(day) for word in words if re.fullmatch(r"\d+[a-z]+", word)), text
    return found


def _long_or_short(name: str) -> tuple[str, str]:
    return name.lower(), name.lower()[:3]


@pytest.mark.parametrize("split", SPLITS)
def test_every_written_date_can_be_read_back(split: str):
    for source, target in GENERATORS["dates"](3, split, 3001):
        assert read_date(source).isoformat() == target, source


def test_dates_are_written_in_many_forms():
    sources = [sample.source for sample in GENERATORS["dates"](1, "train", 3001)]
    shapes = {re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", source.lower())) for source in sources}
    assert {"a 0a a a, 0", "a 0 a 0", "0.0.0", "0/0/0", "0-0-0", "a 0a 0", "a, 0 a 0", "a a 0a, 0"} <= shapes
    assert any(source.islower() for source in sources)
    assert any(source.isupper() for source in sources)


def test_ordinals():
    numbers = (1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 24, 30, 31)
    written = "1st 2nd 3rd 4th 10th 11th 12th 13th 21st 22nd 23rd 24th 30th 31st"
    assert [ordinal(number) for number in numbers] == written.split()


@pytest.mark.parametrize(("split", "longest"), [("train", 25), ("validation", 30), ("test", 30)])
def test_reverse_is_its_own_inverse_and_keeps_its_lengths(split: str, longest: int):
    samples = list(GENERATORS["reverse"](7, split, 1009))
    for source, target in samples:
        assert target.split()[::-1] == source.split()
        assert all(0 <= int(word) <= 50 for word in source.split())
    lengths = {len(source.split()) for source, _ in samples}
    assert max(lengths) == longest
    assert min(lengths) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_splits_never_share_an_answer_whatever_the_seeds(name: str):
    train, validation, test = (
        {sample.target for seed in (1, 2, 3) for sample in GENERATORS[name](seed, split, 2003)} for split in SPLITS
    )
    assert not train & (validation | test)
    assert not validation & test


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_a_pure_function_and_a_prefix_of_a_longer_one(name: str):
    make = GENERATORS[name]
    assert list(make(5, "train", 101)) == list(make(5, "train", 101)) == list(islice(make(5, "train", 10**12), 101))
    assert list(make(5, "train", 101)) != list(make(6, "train", 101))
    assert list(make(5, "train", 0)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_the_same_in_another_process(name: str):
    code = (
        f"from regard.data.synthetic.pairs import GENERATORS as g; print(list(map(tuple, g[{name!r}](5, 'test', 7))))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(list(map(tuple, GENERATORS[name](5, "test", 7))))


def test_an_unknown_split_is_an_error_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'validation'"):
        next(GENERATORS["dates"](1, "validatoin", 1))


def test_making_data_needs_no_torch():
    code = "import sys, regard.data.synthetic.pairs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
