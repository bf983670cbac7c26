"""Synthetic pairs: unlimited clean samples for training, tests and demonstrations, without a file.

    GENERATORS["dates"](seed=1, split="train", count=3)
        the 25th of June, 2009 → 2009-06-25
        Sat 3 May 86           → 1986-05-03

A stream is a pure function of its arguments. Which split a sample belongs to is a hash of what must not leak (the day,
or the sequence) and does not depend on the seed, so two splits never share one.
"""

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from hashlib import blake2b
from itertools import islice
from typing import TypeVar

from regard.data.pairs import Sample
from regard.data.splits import SPLITS
from regard.errors import UserError, nearest

T = TypeVar("T")

FIRST_DAY, LAST_DAY = date(1950, 1, 1), date(2035, 12, 31)

LARGEST_NUMBER = 50

MAX_LENGTH = {"train": 25, "validation": 30, "test": 30}  # held-out sequences may be longer than any seen in training

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def dates(seed: int, split: str, count: int) -> Iterator[Sample]:
    """Written English dates → ISO 8601 (1950–2035); the days of one split never occur in another.

    Every form is unambiguous. Digits alone are day, month, year (12.11.1999 and 3/5/1986 are in November and May), or
    year-month-day with dashes. A two-digit year of 50–99 is in the 1900s and one of 00–49 in the 2000s. The case is
    usually the correct one, sometimes all lower or all upper case.
    """
    rng = random_generator("dates", seed, split)
    days = (LAST_DAY - FIRST_DAY).days + 1
    for day in drawn(lambda: FIRST_DAY + timedelta(days=rng.randrange(days)), date.isoformat, split, count):
        text = rng.choice(FORMS)(day, rng)
        text = rng.choices((text, text.lower(), text.upper()), (8, 1, 1))[0]
        yield Sample(text, day.isoformat())


def reverse(seed: int, split: str, count: int) -> Iterator[Sample]:
    """Numbers 0–50 → the same numbers backwards: 1–25 of them in training, 1–30 in the held-out splits."""
    rng = random_generator("reverse", seed, split)

    def draw() -> list[str]:
        return [str(rng.randint(0, LARGEST_NUMBER)) for _ in range(rng.randint(1, MAX_LENGTH[split]))]

    for numbers in drawn(draw, " ".join, split, count):
        yield Sample(" ".join(numbers), " ".join(reversed(numbers)))


GENERATORS: dict[str, Callable[[int, str, int], Iterator[Sample]]] = {"dates": dates, "reverse": reverse}


def _year(day: date, rng: random.Random) -> str:
    return rng.choice((f"{day.year}", f"{day.year}", f"{day.year % 100:02}"))


def _month(day: date, rng: random.Random) -> str:
    name = MONTHS[day.month - 1]
    return rng.choice((name, name, name[:3]))


def _weekday(day: date, rng: random.Random) -> str:
    name = WEEKDAYS[day.weekday()]
    return rng.choice((name, name[:3]))


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, … 11th, 12th, 13th, … 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


FORMS: tuple[Callable[[date, random.Random], str], ...] = (
    lambda day, rng: f"the {ordinal(day.day)} of {_month(day, rng)}, {day.year}",
    lambda day, rng: f"{_weekday(day, rng)} the {ordinal(day.day)} of {_month(day, rng)} {_year(day, rng)}",
    lambda day, rng: f"{ordinal(day.day)} {_month(day, rng)} {_year(day, rng)}",
    lambda day, rng: f"{day.day} {_month(day, rng)} {_year(day, rng)}",
    lambda day, rng: f"{_weekday(day, rng)} {day.day} {_month(day, rng)} {_year(day, rng)}",
    lambda day, rng: f"{_weekday(day, rng)}, {day.day} {_month(day, rng)} {day.year}",
    lambda day, rng: f"{_weekday(day, rng)}, {_month(day, rng)} {day.day}, {day.year}",
    lambda day, rng: f"{_month(day, rng)} {day.day}, {day.year}",
    lambda day, rng: f"{_month(day, rng)} {ordinal(day.day)} {_year(day, rng)}",
    lambda day, rng: f"{_month(day, rng)} the {ordinal(day.day)}, {day.year}",
    lambda day, rng: f"{day.day}-{MONTHS[day.month - 1][:3]}-{_year(day, rng)}",
    lambda day, rng: f"{day.day}.{day.month}.{_year(day, rng)}",
    lambda day, _: f"{day.day:02}.{day.month:02}.{day.year}",
    lambda day, rng: f"{day.day}/{day.month}/{_year(day, rng)}",
    lambda day, _: f"{day.day:02}/{day.month:02}/{day.year}",
    lambda day, _: f"{day.year}-{day.month:02}-{day.day:02}",
)


def random_generator(name: str, seed: int, split: str) -> random.Random:
    """The random generator of one stream; string seeds are hashed the same way on every machine."""
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r} of synthetic data{nearest(split, SPLITS)}")
    return random.Random(f"{name} {seed} {split}")


def drawn(draw: Callable[[], T], key: Callable[[T], str], split: str, count: int) -> Iterator[T]:
    """The first `count` values drawn that belong to a split by their key."""
    return islice((value for value in iter(draw, None) if split_of(key(value)) == split), count)


def split_of(key: str) -> str:
    """The split of a day, a sequence or a task, independent of the seed: 80 % train, 10 % validation, 10 % test."""
    tenth = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % 10
    return {8: "validation", 9: "test"}.get(tenth, "train")
