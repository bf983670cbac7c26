"""Synthetic sentences with tagged entities: `data.synthetic = "names"`.

    Dovemi   Lortal   moved to Zanfurt on 3     May    1986   .
    B-PER    I-PER    O     O  B-LOC   O  B-DAY I-DAY  I-DAY  O

Persons, places and organisations are made of the same syllables, so that only the context of a name determines its
type. A word of a name belongs to one split (by its hash, 8 : 1 : 1): names of a held-out sentence are unseen. A stream
is a pure function of its arguments. It does not resemble real text: scores only show that a model learns.
"""

import random
from collections.abc import Iterator
from datetime import date, timedelta
from typing import NamedTuple

from regard.data.synthetic.pairs import FIRST_DAY, LAST_DAY, MONTHS, random_generator, split_of
from regard.errors import UserError, nearest

SYLLABLES = (
    *("do", "ve", "mi", "lor", "tal", "zan", "fur", "ka", "re", "sho", "bel", "ni", "gra", "tu", "os", "len", "har"),
    *("pi", "ja", "wen", "cro", "du", "fi", "mor", "ra", "ste", "vul", "ya", "qui", "ner"),
)

ENDINGS = ("Ltd", "Group", "& Sons", "Bank")

FRAMES = (
    "PER moved to LOC on DAY .",
    "PER of ORG was seen in LOC .",
    "On DAY , ORG opened a new office in LOC .",
    "The mayor of LOC thanked PER and PER .",
    "Shares of ORG fell after PER left the firm .",
    "Nobody in LOC had heard of ORG before DAY .",
    "PER was born in LOC .",
    "Trains from LOC to LOC were late .",
    "Yesterday PER sold the house to ORG .",
    "It rained all day .",
    "Mr PER , who works for ORG , comes from LOC .",
    "The meeting of DAY was called off by ORG .",
    "LOC lies north of LOC .",
    "ORG pays its staff well , said PER .",
)


class TaggedWords(NamedTuple):
    """A sentence's words, and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def names(seed: int, split: str, count: int) -> Iterator[TaggedWords]:
    """Sentences with persons (PER), places (LOC), firms (ORG) and days (DAY), in IOB2."""
    rng = random_generator("names", seed, split)
    for _ in range(count):
        words, tags = [], []
        for word in rng.choice(FRAMES).split():
            made = _name(word, split, rng)
            words += made or [word]
            tags += [f"{'I' if position else 'B'}-{word}" for position in range(len(made))] or ["O"]
        yield TaggedWords(tuple(words), tuple(tags))


def generate(name: str, seed: int, split: str, count: int) -> Iterator[TaggedWords]:
    """The sentences of a generator, by its name."""
    if name != "names":
        raise UserError(f"data.synthetic = '{name}' is not a dataset of tagged sentences{nearest(name, ['names'])}")
    return names(seed, split, count)


def _name(entity_type: str, split: str, rng: random.Random) -> list[str]:
    """The words of a name of this type; none for another word."""
    if entity_type == "DAY":
        day: date = FIRST_DAY + timedelta(days=rng.randrange((LAST_DAY - FIRST_DAY).days))
        month = MONTHS[day.month - 1]
        return rng.choice(([str(day.day), month, str(day.year)], [month, str(day.day)], [month, str(day.year)]))
    if entity_type == "PER":
        return [_word(split, rng) for _ in range(rng.choice((1, 2, 2)))]
    if entity_type == "ORG":
        return [_word(split, rng), *rng.choice(("", *ENDINGS)).split()]
    return [_word(split, rng) for _ in range(rng.choice((1, 1, 2)))] if entity_type == "LOC" else []


def _word(split: str, rng: random.Random) -> str:
    """A word that belongs to the split."""
    while True:
        word = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 3)))).capitalize()
        if split_of(word) == split:
            return word
