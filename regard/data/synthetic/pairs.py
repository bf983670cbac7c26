"""Data made on the spot: endless clean samples to learn, test and demonstrate on, with no file to fetch.

    GENERATORS["dates"](seed=1, part="train", count=3)
        the 25th of June, 2009 → 2009-06-25
        Sat 3 May 86           → 1986-05-03

A stream is a pure function of its arguments. Which part a sample belongs to is a hash of what must not leak (the day,
or the sequence) and does not depend on the seed, so two parts never share one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING

from regard.errors import UserError, nearest

if TYPE_CHECKING:
    from regard.tasks.translate.dataset import Sample

PARTS = ("train", "validation", "test")

FIRST_DAY, LAST_DAY = date(1950, 1, 1), date(2035, 12, 31)

LARGEST_NUMBER = 50

LONGEST = {"train": 25, "validation": 30, "test": 30}  # held-out sequences may be longer than any seen in training

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def dates(seed: int, part: str, count: int) -> Iterator[Sample]:
    """English dates as people write them → ISO 8601 (1950–2035); the days of one part never occur in another."""
    from regard.tasks.translate.dataset import Sample

    chance = chance_of("dates", seed, part)
    days = (LAST_DAY - FIRST_DAY).days + 1
    made = 0
    while made < count:
        day = FIRST_DAY + timedelta(days=chance.randrange(days))
        if part_of(day.isoformat()) != part:
            continue
        yield Sample(_any_case(write_date(day, chance), chance), day.isoformat())
        made += 1


def reverse(seed: int, part: str, count: int) -> Iterator[Sample]:
    """Numbers 0–50 → the same numbers backwards: 1–25 of them in training, 1–30 in the held-out parts."""
    from regard.tasks.translate.dataset import Sample

    chance = chance_of("reverse", seed, part)
    made = 0
    while made < count:
        length = chance.randint(1, LONGEST[part])
        numbers = [str(chance.randint(0, LARGEST_NUMBER)) for _ in range(length)]
        if part_of(" ".join(numbers)) != part:
            continue
        yield Sample(" ".join(numbers), " ".join(reversed(numbers)))
        made += 1


Generator = Callable[[int, str, int], "Iterator[Sample]"]

GENERATORS: dict[str, Generator] = {"dates": dates, "reverse": reverse}


def write_date(day: date, chance: random.Random) -> str:
    """One of the forms a person may write a day in; every form is decidable.

    Digits alone are day, month, year (12.11.1999 and 3/5/1986 are in November and May), or year-month-day with dashes.
    A two-digit year of 50–99 is in the 1900s and one of 00–49 in the 2000s.
    """
    return chance.choice(FORMS)(day, chance)


def _year(day: date, chance: random.Random) -> str:
    return chance.choice((f"{day.year}", f"{day.year}", f"{day.year % 100:02}"))


def _month(day: date, chance: random.Random) -> str:
    name = MONTHS[day.month - 1]
    return chance.choice((name, name, name[:3]))


def _weekday(day: date, chance: random.Random) -> str:
    name = WEEKDAYS[day.weekday()]
    return chance.choice((name, name[:3]))


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, … 11th, 12th, 13th, … 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


Form = Callable[[date, random.Random], str]

FORMS: tuple[Form, ...] = (
    lambda day, chance: f"the {ordinal(day.day)} of {_month(day, chance)}, {day.year}",
    lambda day, chance: f"{_weekday(day, chance)} the {ordinal(day.day)} of {_month(day, chance)} {_year(day, chance)}",
    lambda day, chance: f"{ordinal(day.day)} {_month(day, chance)} {_year(day, chance)}",
    lambda day, chance: f"{day.day} {_month(day, chance)} {_year(day, chance)}",
    lambda day, chance: f"{_weekday(day, chance)} {day.day} {_month(day, chance)} {_year(day, chance)}",
    lambda day, chance: f"{_weekday(day, chance)}, {day.day} {_month(day, chance)} {day.year}",
    lambda day, chance: f"{_weekday(day, chance)}, {_month(day, chance)} {day.day}, {day.year}",
    lambda day, chance: f"{_month(day, chance)} {day.day}, {day.year}",
    lambda day, chance: f"{_month(day, chance)} {ordinal(day.day)} {_year(day, chance)}",
    lambda day, chance: f"{_month(day, chance)} the {ordinal(day.day)}, {day.year}",
    lambda day, chance: f"{day.day}-{MONTHS[day.month - 1][:3]}-{_year(day, chance)}",
    lambda day, chance: f"{day.day}.{day.month}.{_year(day, chance)}",
    lambda day, _: f"{day.day:02}.{day.month:02}.{day.year}",
    lambda day, chance: f"{day.day}/{day.month}/{_year(day, chance)}",
    lambda day, _: f"{day.day:02}/{day.month:02}/{day.year}",
    lambda day, _: f"{day.year}-{day.month:02}-{day.day:02}",
)


def _any_case(text: str, chance: random.Random) -> str:
    """Mostly as it should be written, at times all small or all capital."""
    return chance.choices((text, text.lower(), text.upper()), (8, 1, 1))[0]


def chance_of(name: str, seed: int, part: str) -> random.Random:
    """The random source of one stream; string seeds are hashed the same way on every machine."""
    if part not in PARTS:
        raise UserError(f"unknown part {part!r} of generated data{nearest(part, PARTS)}")
    return random.Random(f"{name} {seed} {part}")


def part_of(key: str) -> str:
    """Where a day, a sequence or a task belongs, for ever: 80 % train, 10 % validation, 10 % test."""
    tenth = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % 10
    return {8: "validation", 9: "test"}.get(tenth, "train")
