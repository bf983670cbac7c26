"""Few-shot prompts: one template for training documents and evaluation prompts.

    gub sleeps → red⏎
    zaf sings → blue⏎
    gub runs →              the prompt ends before the space; " red⏎" is the completion

prompt(shots, text) + completion(label) is exactly the document of the shots and that pair.
"""

from collections.abc import Iterable
from typing import NamedTuple

TEMPLATE = "{text} → {label}\n"


class Pair(NamedTuple):
    """A row of labelled text."""

    text: str
    label: str


def document(pairs: Iterable[Pair], template: str = TEMPLATE) -> str:
    """The pairs one after another, each with its answer."""
    return "".join(template.format(text=pair.text, label=pair.label) for pair in pairs)


def prompt(shots: Iterable[Pair], text: str, template: str = TEMPLATE) -> str:
    """The shots with their answers, then the question without one."""
    return document(shots, template) + _halves(template)[0].format(text=text)


def completion(label: str, template: str = TEMPLATE) -> str:
    """The expected continuation of a prompt, with its line break: no label is a prefix of another one."""
    return _halves(template)[1].format(label=label)


def _halves(template: str) -> tuple[str, str]:
    """Split before the space: tokenizers join a space with the word after it."""
    head = template.partition("{label}")[0].rstrip(" ")
    return head, template[len(head) :]
