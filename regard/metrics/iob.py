"""Tags of words → spans of them.

    IOB1     I-PER I-PER O I-LOC B-LOC       B only between two of a kind
    IOB2     B-PER I-PER O B-LOC B-LOC
    BIOES    B-PER E-PER O S-LOC S-LOC
    BILOU    B-PER L-PER O U-LOC U-LOC       the same, by other letters

All are read by the same rules, those of conlleval (Tjong Kim Sang & De Meulder 2003): a span begins at B and S, behind
E and S, and where its kind begins; I or E after O begins one too.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

TAG = re.compile(r"([BIESLU])-(.+)")

SAME = {"L": "E", "U": "S"}  # last, unit

OUTSIDE = "O"


class Entity(NamedTuple):
    """A span of words of one kind, first and last."""

    kind: str
    first: int
    last: int


def is_span_tag(tag: str) -> bool:
    """Whether a tag is O, or B-, I-, E-, S-, L- or U- and a kind."""
    return tag == OUTSIDE or TAG.fullmatch(tag) is not None


def entities(tags: Iterable[str]) -> list[Entity]:
    """The spans that a sentence's tags mean."""
    found: list[Entity] = []
    begun, kind, before = 0, "", OUTSIDE  # of the span that is open; no kind where none is
    number = -1
    for number, tag in enumerate(tags):
        mark, now = _apart(tag)
        if kind and _ends(before, mark, kind, now):
            found.append(Entity(kind, begun, number - 1))
            kind = ""
        if not kind and now:
            begun, kind = number, now
        before = mark
    return [*found, Entity(kind, begun, number)] if kind else found


def _apart(tag: str) -> tuple[str, str]:
    """A tag's mark and kind; what is no span's is outside."""
    match = TAG.fullmatch(tag)
    return (SAME.get(match[1], match[1]), match[2]) if match else (OUTSIDE, "")


def _ends(before: str, mark: str, kind: str, now: str) -> bool:
    """Whether an open span ends before a word, by the marks and kinds of the word before it and its own."""
    return before in "ES" or mark in "BSO" or kind != now


def unbegun(tags: Iterable[str]) -> int:
    """How many words go on with a span that none began: I or E after O, after an end, or after another kind."""
    count, before, kind = 0, OUTSIDE, ""
    for tag in tags:
        mark, now = _apart(tag)
        count += mark in "IE" and (before in "OES" or kind != now)
        before, kind = mark, now
    return count
