"""Behind `regard run`: an answer a line, or one continuation as it is written."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from regard.errors import UserError
from regard.options import Output, given_texts
from regard.passages import read_context, shown
from regard.report import answer_line, emit, harmless
from regard.tasks.fill import Filled
from regard.tasks.reply import Reply


@dataclass(frozen=True)
class Nothing:
    """The answer to an empty line."""

    text: str = ""
    truncated: bool = False
    others: tuple["Nothing", ...] = ()


EMPTY = Nothing()
AHEAD = ("draft", "lookup")  # what guesses ahead writes several tokens at once


def answer_all(model: Any, inputs: list[str] | None, size: int, output: Output, **options: Any) -> None:
    """Prints an answer to each input, or to each line of stdin, `size` of them computed at once."""
    lines, alone = given_texts(inputs), inputs is not None and len(inputs) == 1
    if "context" in options:
        options["context"] = read_context(options["context"])
    if alone and model.continues and not output.json:
        write(model, next(lines), options)
        return
    at_once = size if inputs or not sys.stdin.isatty() else 1  # a terminal is answered line by line
    while texts := list(islice(lines, at_once)):
        for text, answer in zip(texts, _answers(model, texts, inputs, batch_size=size, **options), strict=True):
            if not output.json and answer is not EMPTY:
                _warn(model, text, answer)
            if isinstance(answer, Reply) and not output.json and sys.stdout.isatty():
                Console(highlight=False).print(shown(answer, options.get("context") or text.partition("\t")[2]))
                continue
            print(answer_line(answer, output), flush=sys.stdin.isatty())
            if isinstance(answer, Filled) and "best" in options and not output.json:
                print("\n".join("\t".join(f"{word.text} {word.score:.3f}" for word in place) for place in answer.words))


def _answers(model: Any, texts: list[str], inputs: list[str] | None, **options: Any) -> list[Any]:
    """An answer to each; an empty line of stdin has an empty one, so that lines and answers stay side by side."""
    full = [text for text in texts if inputs or text.strip()]
    found = iter(model.run(full, **options) if full else ())
    return [next(found) if inputs or text.strip() else EMPTY for text in texts]


def write_vectors(model: Any, inputs: list[str] | None, size: int, output: Output, path: Path, **options: Any) -> None:
    """Embeds each input, or each line of stdin, and writes a float32 array (inputs, width) that numpy opens."""
    if (task := options.pop("task", model.task)) != "embed":
        raise UserError(f"--vectors {path}: this is to '{task}'; give --task embed too")
    rows = model.readings(list(given_texts(inputs)), options.pop("truncate", False))
    for name in options:
        raise UserError(f"--{name.replace('_', '-')} has no meaning for embedding")
    vectors = model.vectors(rows, size)
    with path.open("wb") as file:
        np.save(file, vectors)
    if output.json or not output.quiet:
        told = {"written": path, "texts": len(vectors), "width": vectors.shape[1], "cut": sum(row.cut for row in rows)}
        emit(told, output, "vectors")


def write(model: Any, prompt: str, options: Mapping[str, Any]) -> None:
    """Prints what follows one prompt with its line breaks; at a terminal, while it is written."""
    if sys.stdout.isatty() and (writing := _streamed(model, prompt, options)):
        for piece in writing:
            print(harmless(piece), end="", flush=True)
        print()
        answer = writing.answer
    else:
        answer = model.run([prompt], **options)[0]
        print(answer.text if not answer.others else answer_line(answer, Output()))
    _warn(model, prompt, answer)


def _streamed(model: Any, prompt: str, options: Mapping[str, Any]) -> Any:
    """The continuation piece by piece; nothing where all of it is known only in the end."""
    if any(name in options for name in AHEAD) or options.get("task", model.task) != model.task:
        return None
    truncate = options.get("truncate", False)
    decode = {name: value for name, value in options.items() if name not in ("truncate", "task")}
    found = model.decoding(**decode)
    if found.num_beams > 1 or found.num_return_sequences > 1:
        return None
    return model.stream(prompt, truncate=truncate, **decode)


def _warn(model: Any, text: str, answer: Any) -> None:
    for note in _notes(model, text, answer):
        print(f"warning: {note}", file=sys.stderr)


def _notes(model: Any, text: str, answer: Any) -> Iterator[str]:
    """What a reader of the answer should know of how it came about."""
    if answer.truncated:
        yield f"cut to what the model reads: {text[:60]!r}…"
    if getattr(answer, "slid", False):
        yield f"the text outgrew the model's context of {model.network.limit} tokens: its older half was forgotten"
