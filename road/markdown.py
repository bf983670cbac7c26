"""The few shapes that the page is made of."""

import re
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a heading that begins with < is of a column of words, the others are of figures and stand right."""
    names = [name.removeprefix("<") for name in head]
    rule = ["---" if name.startswith("<") else "--:" for name in head]
    lines = [names, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def listed(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
