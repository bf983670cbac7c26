"""Sentence segmentation."""

import re

ENDS = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]+[”」』）]*")

OPENERS = "\"'“‘«([¿¡"

ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|No|vs|cf|Fig|approx|Gen|Col|Lt)\.\s+$")

CONTEXT = 160  # characters on each side of a span at most


def sentences(text: str) -> list[str]:
    """A text's sentences: final punctuation, a space, and then a capital, a digit or a caseless letter.

    Initials and some titles (J., Dr.) end no sentence. A missed boundary only makes a sentence longer.
    """
    result = []
    begin = 0
    for mark in ENDS.finditer(text):
        follows = text[mark.end() : mark.end() + 8].lstrip(OPENERS)[:1]
        if not follows or follows.islower() or ABBREVIATION.search(text, max(begin, mark.start() - 10), mark.end()):
            continue
        result.append(text[begin : mark.end()].strip())
        begin = mark.end()
    return [sentence for sentence in (*result, text[begin:].strip()) if sentence]


def sentence_around(context: str, start: int, end: int) -> tuple[int, int]:
    """The sentence or line that contains characters start … end, or, if it is long, CONTEXT characters around them."""
    low, high = max(0, start - CONTEXT), min(len(context), end + CONTEXT)
    sentence_ends = [low + match.end() for match in ENDS.finditer(context[low:high])]
    line_starts = [low + index + 1 for index, character in enumerate(context[low:high]) if character == "\n"]
    borders = sorted({low, high, *sentence_ends, *line_starts})
    begin = max(border for border in borders if border <= start)
    return begin, min((border for border in borders if border >= end and border > begin), default=high)
