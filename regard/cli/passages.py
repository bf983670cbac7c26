"""Texts that questions are asked of, and the passages of them that answer, as a terminal shows them."""

from pathlib import Path

from rich.text import Text

from regard.cli.output import harmless
from regard.data.documents import decoded
from regard.errors import UserError
from regard.tasks.answer.predict import Reply
from regard.text.sentences import sentence_around

CHUNK = 1 << 20  # bytes read at once


def read_context(path: Path) -> str:
    """All of a text file; .gz too."""
    if not path.is_file():
        raise UserError(f"--context {path}: no such file")
    text = "".join(decoded(path, 0, None, CHUNK))
    if not text.strip():
        raise UserError(f"--context {path}: is empty")
    return text


def shown(reply: Reply, context: str) -> Text:
    """An answer and the next best ones: each with its score, and its sentence with the answer set off in it."""
    lines = [line for each in (reply, *reply.others) for line in _lines(each, context)]
    return Text("\n").join(lines)


def _lines(reply: Reply, context: str) -> list[Text]:
    if not reply.text:
        return [Text.assemble(("the text does not say", "italic"), (f"  {reply.score:.2f}", "dim"))]
    begin, end = sentence_around(context, reply.start, reply.end)
    before, behind = context[begin : reply.start], context[reply.end : end]
    said = Text.assemble(
        ("… " if context[:begin].strip() else "", "dim"),
        _flat(before),
        (_flat(reply.text), "bold reverse"),
        _flat(behind),
        (" …" if context[end:].strip() else "", "dim"),
    )
    place = f"  {reply.score:.2f}  characters {reply.start:,} to {reply.end:,}"
    return [Text.assemble((_flat(reply.text), "bold"), (place, "dim")), Text("  ") + said]


def _flat(text: str) -> str:
    """On one line, and harmless to a terminal."""
    return harmless(" ".join(text.splitlines()))
