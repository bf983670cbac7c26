"""What is compared: the models from RNN to Transformer, ablations of the Transformer, and another language."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """A published result of the same idea on the same test split."""

    name: str
    parameters: str
    bleu: float


@dataclass(frozen=True)
class Experiment:
    """A model of the study: the recipe that trains it, and what the page says of it besides what was measured."""

    recipe: str  # the name of a built-in recipe, or a file
    title: str
    paper: str
    idea: tuple[str, str, str]  # three sentences
    equation: str
    code: tuple[str, ...]  # its implementation, as module:name
    published: Published | None = None
    line: str = ""  # its name in the chart of BLEU by length; empty: not drawn

    @property
    def name(self) -> str:
        return Path(self.recipe).stem


@dataclass(frozen=True)
class Sentence:
    """A sentence that is not in the corpus, and its meaning."""

    source: str
    meaning: str


@dataclass(frozen=True)
class Plan:
    """All models in order, and the sentence that each of them translates."""

    comparison: tuple[Experiment, ...]
    ablations: tuple[Experiment, ...]  # the first is the complete model
    language: tuple[Experiment, ...]
    sentence: Sentence
    other: Sentence | None = None  # of the other language

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return self.comparison + self.ablations + self.language

    def shown(self, experiment: Experiment) -> Sentence:
        return self.other if self.other and experiment in self.language else self.sentence

    def reference(self, experiment: Experiment) -> Experiment | None:
        """What a model is compared with: the one before it, an ablation with the complete model; none for the first."""
        group = next(group for group in (self.comparison, self.ablations, self.language) if experiment in group)
        index = group.index(experiment)
        if index == 0:
            return None
        return group[0] if group is self.ablations else group[index - 1]
