"""Predictions of token classifiers: the entities of a text, with positions and scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from regard.metrics.entities import Entity, entities, is_span_tag
from regard.tasks.predictor import Segment, Unranked


@dataclass(frozen=True)
class TaggedSpan:
    """Words of a text from character `start` up to `end`, and their label.

    `score` is the least of the words' probabilities, an uncalibrated softmax.
    """

    text: str
    label: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Tags(Unranked):
    """A text with its entities in order, and the tag of every word."""

    source: str
    entities: tuple[TaggedSpan, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]
    truncated: bool = False

    @property
    def text(self) -> str:
        """The text with its entities in brackets: [Ada Lovelace PER] wrote."""
        return "".join(f"[{segment.text}]" if segment.style else segment.text for segment in self.segments())

    @property
    def score(self) -> float:
        return min((span.score for span in self.entities), default=1.0)

    def segments(self) -> list[Segment]:
        """The text with its entities emphasised."""
        segments = []
        end = 0
        for span in self.entities:
            segments += [Segment(self.source[end : span.start]), Segment(f"{span.text} {span.label}", "highlight")]
            end = span.end
        return [*segments, Segment(self.source[end:])]


def tags_of(
    words: Sequence[str],
    tags: Sequence[str],
    scores: Sequence[float] = (),
    source: str = "",
    positions: Sequence[tuple[int, int]] = (),
) -> Tags:
    """The entities of a text by the tags of its words; without positions, the text is the words joined by spaces."""
    if not positions:
        source = " ".join(words)
        positions = word_positions(words)
    tagged = []
    for label, first, last in spans(tags):
        start = positions[first][0]
        end = positions[last][1]
        score = min(scores[first : last + 1], default=1.0)
        tagged.append(TaggedSpan(source[start:end], label, start, end, score))
    return Tags(source, tuple(tagged), tuple(words), tuple(tags))


def word_positions(words: Sequence[str]) -> list[tuple[int, int]]:
    """Start and end of each word in the text that they make when joined by spaces."""
    borders = accumulate(len(word) + 1 for word in words)
    return [(border - len(word) - 1, border - 1) for word, border in zip(words, borders, strict=True)]


def spans(tags: Sequence[str]) -> list[Entity]:
    """The spans of IOB tags; other tags, such as parts of speech, are a span per word."""
    if all(map(is_span_tag, tags)):
        return entities(tags)
    return [Entity(tag, index, index) for index, tag in enumerate(tags) if tag != "O"]
