"""Tags of words → spans of them.

    IOB1     I-PER I-PER O I-LOC B-LOC       B only between two of a type
    IOB2     B-PER I-PER O B-LOC B-LOC
    BIOES    B-PER E-PER O S-LOC S-LOC
    BILOU    B-PER L-PER O U-LOC U-LOC       the same, with other letters

All are read by the rules of conlleval (Tjong Kim Sang & De Meulder 2003): a span begins at B and S, after E and S, and
where the type changes; I or E after O begins one too.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

TAG = re.compile(r"([BIESLU])-(.+)")
EQUIVALENT = {"L": "E", "U": "S"}  # last, unit
OUTSIDE = "O"


class Entity(NamedTuple):
    """A span of words of one type, first and last."""

    kind: str
    first: int
    last: int


def is_span_tag(tag: str) -> bool:
    """Whether a tag is O, or B-, I-, E-, S-, L- or U- and a type."""
    return tag == OUTSIDE or TAG.fullmatch(tag) is not None


def entities(tags: Iterable[str]) -> list[Entity]:
    """The spans of a sentence."""
    spans: list[Entity] = []
    first = 0
    open_kind = ""  # of the span that is open; empty if none is
    previous = OUTSIDE
    index = -1
    for index, tag in enumerate(tags):
        prefix, kind = _parse(tag)
        if open_kind and (previous in "ES" or prefix in "BSO" or kind != open_kind):
            spans.append(Entity(open_kind, first, index - 1))
            open_kind = ""
        if not open_kind and kind:
            first = index
            open_kind = kind
        previous = prefix
    return [*spans, Entity(open_kind, first, index)] if open_kind else spans


def count_unopened(tags: Iterable[str]) -> int:
    """How many words continue a span that none began: I or E after O, after an end, or after another type."""
    count = 0
    previous = (OUTSIDE, "")
    for tag in tags:
        prefix, kind = _parse(tag)
        count += prefix in "IE" and (previous[0] in "OES" or previous[1] != kind)
        previous = (prefix, kind)
    return count


def _parse(tag: str) -> tuple[str, str]:
    """A tag's prefix and type; anything but a span tag is outside."""
    match = TAG.fullmatch(tag)
    return (EQUIVALENT.get(match[1], match[1]), match[2]) if match else (OUTSIDE, "")
