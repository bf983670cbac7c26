"""Sentence segmentation."""

import re

ENDS = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]+[”」』）]*")

OPENERS = "\"'“‘«([¿¡"

SHORT = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|No|vs|cf|Fig|approx|Gen|Col|Lt)\.\s+$")
AROUND = 160  # characters on each side of a span at most


def sentences(text: str) -> list[str]:
    """A text's sentences: a mark that ends one, a space, and a capital, a digit or a letter without case behind it.

    An initial and some titles (J., Dr.) end none. What this misses is a pair of shorter or longer halves, no error.
    """
    found, begin = [], 0
    for mark in ENDS.finditer(text):
        follows = text[mark.end() : mark.end() + 8].lstrip(OPENERS)[:1]
        if not follows or follows.islower() or SHORT.search(text, max(begin, mark.start() - 10), mark.end()):
            continue
        found.append(text[begin : mark.end()].strip())
        begin = mark.end()
    return [each for each in (*found, text[begin:].strip()) if each]


def sentence_around(context: str, start: int, end: int) -> tuple[int, int]:
    """The sentence, line or, where they are long, so many characters that hold characters start … end."""
    low, high = max(0, start - AROUND), min(len(context), end + AROUND)
    ends = [low + match.end() for match in ENDS.finditer(context[low:high])]
    lines = [low + place + 1 for place, letter in enumerate(context[low:high]) if letter == "\n"]
    borders = sorted({low, high, *ends, *lines})
    begin = max(border for border in borders if border <= start)
    return begin, min((border for border in borders if border >= end and border > begin), default=high)
