"""Answers of a network that tags words: what is named in a text, where, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from regard.metrics.iob import Entity, entities, is_span_tag

MARK, CALM = "\x1b[1;4m", "\x1b[0m"  # bold and underlined; as before


@dataclass(frozen=True)
class Named:
    """Some words of a text, from character `start` on and before `end`, and what they are.

    `score` is the least of its words' probabilities, a softmax that nothing has calibrated.
    """

    text: str
    label: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Tags:
    """A text with what is named in it, in its order; and the tag of every word."""

    source: str
    entities: tuple[Named, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]
    truncated: bool = False

    @property
    def text(self) -> str:
        """The text with what is named in brackets: [Ada Lovelace PER] wrote."""
        return self._with("[", "]")

    @property
    def marked(self) -> str:
        """The same for a terminal."""
        return self._with(MARK, CALM)

    @property
    def others(self) -> tuple["Tags", ...]:
        return ()

    def _with(self, before: str, behind: str) -> str:
        parts, done = [], 0
        for each in self.entities:
            parts += [self.source[done : each.start], before, f"{each.text} {each.label}", behind]
            done = each.end
        return "".join([*parts, self.source[done:]])


def found_in(
    words: Sequence[str],
    tags: Sequence[str],
    scores: Sequence[float] = (),
    source: str = "",
    places: Sequence[tuple[int, int]] = (),
) -> Tags:
    """The answer that these tags of a text's words mean; without a text its words with a space between."""
    if not places:
        source, places = " ".join(words), spaced(words)
    named = []
    for kind, first, last in spans(tags):
        start, end = places[first][0], places[last][1]
        score = min(scores[first : last + 1], default=1.0)
        named.append(Named(source[start:end], kind, start, end, score))
    return Tags(source, tuple(named), tuple(words), tuple(tags))


def spaced(words: Sequence[str]) -> list[tuple[int, int]]:
    """Where each word stands in the text that they make with a space between."""
    ends = accumulate(len(word) + 1 for word in words)
    return [(end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]


def spans(tags: Sequence[str]) -> list[Entity]:
    """The spans that tags mean; tags of another kind, such as parts of speech, are each a word's own."""
    if all(map(is_span_tag, tags)):
        return entities(tags)
    return [Entity(tag, number, number) for number, tag in enumerate(tags) if tag != "O"]
