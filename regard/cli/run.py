"""Behind `regard run`: an answer a line, or one continuation as it is written; or vectors to a file."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from rich.console import Console

from regard.cli.options import Output, Rows
from regard.cli.output import answer_line, emit, harmless
from regard.cli.passages import read_context, shown
from regard.cli.run_inputs import Given, from_file, from_words
from regard.errors import UserError
from regard.tasks.answer.predict import Reply, asked
from regard.tasks.fill.predict import Filled


@dataclass(frozen=True)
class Nothing:
    """The answer to an empty line, or a row without text."""

    text: str = ""
    truncated: bool = False
    others: tuple["Nothing", ...] = ()


EMPTY = Nothing()

NO_ROWS = Rows()

LIKE = 16  # batches of a file's texts that are sorted by length together

AHEAD = ("draft", "lookup")  # what guesses ahead writes several tokens at once


def answer_all(
    model: Any, inputs: list[str] | None, size: int, output: Output, rows: Rows = NO_ROWS, **options: Any
) -> None:
    """Prints an answer to each input, to each row of a file, or to each line of stdin, `size` of them at once."""
    given, alone = _given(model, inputs, rows, output.quiet, options), inputs is not None and len(inputs) == 1
    if "context" in options:
        options["context"] = read_context(options["context"])
    if alone and model.is_causal_lm and not output.json:
        write(model, next(given), options)
        return
    at_once = size if inputs or rows.file or not sys.stdin.isatty() else 1  # a terminal is answered line by line
    if rows.file and (model.is_encoder or model.is_classifier):
        at_once *= LIKE  # texts of like length are read together
    while some := list(islice(given, at_once)):
        for each, answer in zip(some, _answers(model, some, batch_size=size, **options), strict=True):
            _print(model, each, answer, output, options)


def _print(model: Any, given: Given, answer: Any, output: Output, options: Mapping[str, Any]) -> None:
    if not output.json and answer is not EMPTY:
        _warn(model, given, answer)
    if isinstance(answer, Reply) and not output.json and sys.stdout.isatty():
        context = options.get("context") or asked(given.input, 1).context
        Console(highlight=False).print(shown(answer, context))
        return
    print(answer_line(answer, output, given.place), flush=sys.stdin.isatty())
    if isinstance(answer, Filled) and "best" in options and not output.json:
        print("\n".join("\t".join(f"{word.text} {word.score:.3f}" for word in place) for place in answer.words))


def _given(
    model: Any, inputs: list[str] | None, rows: Rows, quiet: bool, options: Mapping[str, Any]
) -> Iterator[Given]:
    if not rows.file:
        return from_words(inputs, quiet)
    return from_file(model, options.get("task", model.task), rows, "context" in options, quiet)


def _answers(model: Any, some: list[Given], **options: Any) -> list[Any]:
    """An answer to each; what is blank has an empty one, so that lines and answers stay side by side."""
    full = [each for each in some if not each.blank]
    try:
        found = iter(model.run([each.input for each in full], **options) if full else ())
    except UserError:
        _blame(model, full, options)
        raise
    return [EMPTY if each.blank else next(found) for each in some]


def _blame(model: Any, some: list[Given], options: Mapping[str, Any]) -> None:
    """Of the rows of a file, say by its place which one cannot be answered; not where the options cannot."""
    if not some[0].place:
        return
    model.run([], **options)
    for each in some:
        try:
            model.run([each.input], **options)
        except UserError as error:
            raise UserError(f"{each.place}: {str(error).removeprefix('input 1 ').removeprefix('input 1: ')}") from None


def write_vectors(
    model: Any, inputs: list[str] | None, size: int, output: Output, path: Path, rows: Rows = NO_ROWS, **options: Any
) -> None:
    """Embeds each input, row or line of stdin, and writes a float32 array (inputs, width) that numpy opens."""
    if (task := options.pop("task", model.task)) != "embed":
        raise UserError(f"--vectors {path}: this is to '{task}'; give --task embed too")
    truncate = options.pop("truncate", False)
    for name in options:
        raise UserError(f"--{name.replace('_', '-')} has no meaning for embedding")
    given = _given(model, inputs, rows, output.quiet, {"task": task})
    count = cut = width = 0
    with TemporaryFile() as made:  # nothing is written before all is read, and memory holds some at a time
        while some := list(islice(given, size * LIKE)):
            read = _readings(model, some, truncate)
            vectors = model.vectors(read, size)
            made.write(np.ascontiguousarray(vectors, "<f4").data)
            count, cut, width = count + len(read), cut + sum(row.cut for row in read), vectors.shape[1]
        made.seek(0)
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
            np.lib.format.write_array_header_1_0(file, header)
            copyfileobj(made, file)
    if output.json or not output.quiet:
        emit({"written": path, "texts": count, "width": width, "cut": cut}, output, "vectors")


def _readings(model: Any, some: list[Given], truncate: bool) -> list[Any]:
    try:
        return model.readings([each.input for each in some], truncate)
    except UserError:
        _blame(model, some, {"task": "embed", "truncate": truncate})
        raise


def write(model: Any, given: Given, options: Mapping[str, Any]) -> None:
    """Prints what follows one prompt with its line breaks; at a terminal, while it is written."""
    prompt = given.input
    if sys.stdout.isatty() and (writing := _streamed(model, prompt, options)):
        for piece in writing:
            print(harmless(piece), end="", flush=True)
        print()
        answer = writing.answer
    else:
        answer = model.run([prompt], **options)[0]
        print(answer.text if not answer.others else answer_line(answer, Output()))
    _warn(model, given, answer)


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


def _warn(model: Any, given: Given, answer: Any) -> None:
    for note in _notes(model, given, answer):
        print(f"warning: {note}", file=sys.stderr)


def _notes(model: Any, given: Given, answer: Any) -> Iterator[str]:
    """What a reader of the answer should know of how it came about."""
    if answer.truncated:
        yield f"cut to what the model reads: {given.shown}"
    if getattr(answer, "slid", False):
        size = model.network.max_positions
        yield f"the text outgrew the model's context of {size} tokens: its older half was forgotten"
