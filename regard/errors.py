"""The one error a user sees: what was given, what is possible, and where."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something in a file, a request or a command line is wrong; the message says how to put it right."""


def nearest(word: str, options: Iterable[str]) -> str:
    """The end of an error about an unknown word: the closest possible one, or all of them."""
    possible = sorted(options)
    close = get_close_matches(word, possible, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; possible: {', '.join(possible)}"
