"""Markdown tables, anchors and lists."""

import re
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a column whose heading begins with < is text, the others are numbers and aligned right."""
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
