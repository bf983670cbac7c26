"""The error that users see, the lists and suggestions in its message, and messages that are safe to print."""

import sys
from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 10  # names in a message

PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}  # of control characters
PICTURES |= {0x7F: 0x2421}
PICTURES |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


class UserError(Exception):
    """A mistake in a file, a request or a command line; the message names the problem, what is expected, and a fix.

    With an `index`, it is about one of several inputs: "input 3 is empty".
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        self.message = message
        self.index = index
        super().__init__(message if index is None else f"input {index + 1} {message}")


def listed(names: Iterable[str], command: str = "") -> str:
    """Names with commas between; a long list is truncated, and `command` shows all of it."""
    names = list(names)
    hidden = len(names) - MAX_LISTED
    more = f", … and {hidden} more" + (f" (`{command}`)" if command else "")
    return ", ".join(names[:MAX_LISTED]) + (more if hidden > 0 else "")


def either(names: Iterable[str]) -> str:
    """Alternatives in words: "a", "a or b", "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def nearest(word: str, options: Iterable[str], command: str = "") -> str:
    """The end of an error about an unknown name: the most similar option, or else all; of many the most similar."""
    options = sorted(options)
    if close := get_close_matches(word, options, n=1, cutoff=0.6):
        return f"; did you mean '{close[0]}'?"
    if len(options) > MAX_LISTED:
        options = get_close_matches(word, options, n=len(options), cutoff=0.0)
    return f"; expected one of: {listed(options, command)}"


def escape_controls(text: str) -> str:
    """A text that is safe to print in a terminal: control characters and text directions become visible symbols."""
    return text.translate(PICTURES)


def report(kind: str, text: str) -> None:
    """An error, a warning or a note on stderr."""
    print(f"{kind}: {escape_controls(text)}", file=sys.stderr)
