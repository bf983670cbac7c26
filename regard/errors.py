"""The error that users see: what was given, what is possible, and where."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something in a file, a request or a command line is wrong; the message says how to correct it.

    With an `index`, it is about one of several inputs: "input 3 is empty".
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        self.message = message
        self.index = index
        super().__init__(message if index is None else f"input {index + 1} {message}")


def nearest(word: str, options: Iterable[str]) -> str:
    """The end of an error about an unknown word: the closest possible one, or all of them."""
    possible = sorted(options)
    close = get_close_matches(word, possible, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; possible: {', '.join(possible)}"
