"""How examples stand in a prompt: one template for what a model is trained on and what it is asked.

    gub sleeps → red⏎
    zaf sings → blue⏎
    gub runs →              the prompt ends before the space; " red⏎" is the completion

prompt(shots, text) + completion(label) is, letter for letter, the document of the shots and that pair.
"""

from collections.abc import Iterable
from typing import NamedTuple

TEMPLATE = "{text} → {label}\n"


class Pair(NamedTuple):
    """A row of labelled text: what is asked, and the answer."""

    text: str
    label: str


def document(pairs: Iterable[Pair], template: str = TEMPLATE) -> str:
    """The pairs one after another, each with its answer."""
    return "".join(template.format(text=pair.text, label=pair.label) for pair in pairs)


def prompt(shots: Iterable[Pair], text: str, template: str = TEMPLATE) -> str:
    """The shots with their answers, then the question without one."""
    return document(shots, template) + _halves(template)[0].format(text=text)


def completion(label: str, template: str = TEMPLATE) -> str:
    """What should follow a prompt, line break and all: a label that begins another one is not half of it."""
    return _halves(template)[1].format(label=label)


def _halves(template: str) -> tuple[str, str]:
    """Cut before the space: tokenizers keep a space with the word that follows it, not with what it follows."""
    asked = template.partition("{label}")[0].rstrip(" ")
    return asked, template[len(asked) :]
