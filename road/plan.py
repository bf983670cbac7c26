"""What a rung is, and which rungs there are: the road, the pieces of the Transformer, another language."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """What somebody else reached with the same idea on the same test part."""

    name: str
    parameters: str
    bleu: float


@dataclass(frozen=True)
class Rung:
    """One idea: the recipe that trains it, and what the page says of it besides what was measured."""

    recipe: str  # a name that ships, or a file
    title: str
    paper: str
    idea: tuple[str, str, str]  # three sentences
    equation: str
    code: tuple[str, ...]  # what expresses it, as module:name
    published: Published | None = None
    line: str = ""  # its name among the lines of BLEU by length; none: it is not drawn there

    @property
    def name(self) -> str:
        return Path(self.recipe).stem


@dataclass(frozen=True)
class Sentence:
    """A sentence that no corpus has, and what it says."""

    source: str
    meaning: str


@dataclass(frozen=True)
class Plan:
    """All rungs in their order, and the sentence that each of them translates and shows."""

    road: tuple[Rung, ...]
    pieces: tuple[Rung, ...]  # the first is whole
    language: tuple[Rung, ...]
    sentence: Sentence
    other: Sentence | None = None  # of the other language

    @property
    def rungs(self) -> tuple[Rung, ...]:
        return self.road + self.pieces + self.language

    def shown(self, rung: Rung) -> Sentence:
        return self.other if self.other and rung in self.language else self.sentence

    def reference(self, rung: Rung) -> Rung | None:
        """What a rung is compared with: the one before it, of the pieces the whole; nothing for the first of each."""
        group = next(group for group in (self.road, self.pieces, self.language) if rung in group)
        place = group.index(rung)
        if place == 0:
            return None
        return group[0] if group is self.pieces else group[place - 1]
