"""`regard run`: a line per prediction, or one continuation while it is generated; or embeddings to a file."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from regard.cli.command import option_name
from regard.cli.options import AttentionOptions, FileOptions, Output
from regard.cli.output import emit, printable, to_json, to_jsonable
from regard.cli.run_inputs import read_inputs
from regard.cli.run_output import row_writer
from regard.config.options import DecodeOptions
from regard.data.documents import decoded
from regard.data.files import LINE_LIMIT
from regard.errors import UserError, either, escape_controls, report
from regard.models.registry import FAMILIES, family_of
from regard.tasks.predictor import EMPTY, Inference, Options, Prediction, Predictor, RunInput, tasks_with_option
from regard.text.vocabulary import Vocabulary

SORTED_BATCHES = 16  # batches of a file's inputs that are sorted by length together
CHUNK = 1 << 20  # bytes of a context file read at once
STYLES = {"": "", "strong": "bold", "highlight": "bold underline", "dim": "dim"}


def run_all(
    predictor: Predictor, inputs: list[str] | None, rows: FileOptions, options: Options, batch_size: int, output: Output
) -> None:
    """Print a prediction for each input, row of a file, or line of stdin, `batch_size` of them at a time."""
    values = read_inputs(predictor, inputs, rows, "context" in options, output.quiet)
    unknown = UnknownWords(predictor)
    if "context" in options:
        options["context"] = read_context(options["context"])
    first = list(islice(values, 2)) if inputs is not None and len(inputs) == 1 else []
    if len(first) == 1:  # alone, an empty input is an error
        value = first[0]
        if predictor.streams and not output.json:
            _print_stream(predictor, value, options)
        else:
            _print(predictor, value, predictor.run(value.value, {"batch_size": batch_size, **options}), output, options)
        unknown.add(value)
        unknown.warn()
        return
    values = chain(first, values)  # one argument may name several inputs: a folder of images
    interactive = not inputs and not rows.file and sys.stdin.isatty()  # a terminal is answered line by line
    size = 1 if interactive else batch_size
    if rows.file and predictor.sorts_by_length:
        size *= SORTED_BATCHES
    with row_writer(rows.results, rows.file) if rows.results else nullcontext() as writer:
        while batch := list(islice(values, size)):
            with _locating_errors(batch):
                predictions = predictor.run([value.value for value in batch], {"batch_size": batch_size, **options})
            for value, prediction in zip(batch, predictions, strict=True):
                unknown.add(value)
                if writer:
                    _warn(predictor, value, prediction)
                    writer.write(value, prediction)
                else:
                    _print(predictor, value, prediction, output, options, True)
    unknown.warn()
    if writer and (output.json or not output.quiet):
        emit({"written": rows.results, "rows": writer.count}, output, "predictions")


class UnknownWords:
    """Counts the words that an encoder's tokenizer replaces by its unknown token, for one warning at the end."""

    def __init__(self, predictor: Predictor) -> None:
        text_encoder = FAMILIES[family_of(predictor.network)].is_encoder and isinstance(predictor.processor, Vocabulary)
        self.tokenizer = predictor.processor.source if text_encoder else None
        self.count = 0
        self.first = ""

    def add(self, value: RunInput) -> None:
        if self.tokenizer is None:
            return
        texts = value.value.values() if isinstance(value.value, Mapping) else value.value
        texts = [texts] if isinstance(texts, str) else [text for text in texts if isinstance(text, str)]
        words = self.tokenizer.unknown_words(texts)
        if words and not self.count:
            self.first = f"{words[0]!r:.40} in {value}"
        self.count += len(words)

    def warn(self) -> None:
        if self.count and self.tokenizer:
            token = self.tokenizer.name(self.tokenizer.unknown)
            report("warning", f"words not in the vocabulary, read as {token}: {self.count}, the first is {self.first}")


def check_options(predictor: Predictor, options: Options) -> None:
    """Reject an option that the model's task does not have; the error says which tasks have it."""
    for name in options:
        if name not in (*predictor.options, *Inference._fields):
            owners = either(tasks_with_option(name))
            model = f"{predictor.description} (task {predictor.task})"
            raise UserError(f"{option_name(name)} is for task {owners}; this is {model}")


def read_context(path: Path) -> str:
    """The text of a file; .gz too."""
    if not path.is_file():
        raise UserError(f"--context {path}: file not found")
    text = ""
    for chunk in decoded(path, 0, None, CHUNK):
        text += chunk
        if len(text) > LINE_LIMIT:
            raise UserError(f"--context {path}: longer than {LINE_LIMIT >> 20} million characters; split the file")
    if not text.strip():
        raise UserError(f"--context {path}: the file is empty")
    return text


@contextmanager
def _locating_errors(batch: list[RunInput]) -> Iterator[None]:
    """An error about one of these inputs is raised with its location."""
    try:
        yield
    except UserError as error:
        if error.index is None or not batch[error.index].location:
            raise
        raise UserError(f"{batch[error.index].location}: {error.message}") from None


def _print(
    predictor: Predictor,
    value: RunInput,
    prediction: Prediction,
    output: Output,
    options: Options,
    several: bool = False,
) -> None:
    if output.json:
        location = {"location": value.location} if value.location else {}
        print(to_json(location | to_jsonable(prediction), indent=None), flush=sys.stdin.isatty())
        return
    if prediction is EMPTY:
        print(flush=sys.stdin.isatty())
        return
    _warn(predictor, value, prediction)
    console = Console(highlight=False)
    styled = console.is_terminal and not console.no_color
    segments = predictor.segments(prediction, value.value, options) if styled else None
    if segments is not None:
        console.print(Text.assemble(*((escape_controls(each.text), STYLES[each.style]) for each in segments)))
        return
    name = f"{value.location}\t" if several and value.location == value.value else ""  # a file of several
    print(printable(name + "\n".join(predictor.lines(prediction, options))), flush=sys.stdin.isatty())


def _print_stream(predictor: Any, value: RunInput, options: Options) -> None:
    """Print one continuation with its line breaks; in a terminal, while it is generated."""
    decode = {name: option for name, option in options.items() if name != "truncate"}
    if sys.stdout.isatty() and predictor.can_stream(decode):
        stream = predictor.stream(value.value, truncate=options.get("truncate", False), **decode)
        for text in stream:
            print(escape_controls(text), end="", flush=True)
        print()
        prediction = stream.answer
        assert prediction is not None  # it has ended
    else:
        prediction = predictor.run(value.value, dict(options))
        lines = predictor.lines(prediction, options)
        print(printable("\n".join(lines) if prediction.alternatives else prediction.text))
    _warn(predictor, value, prediction)


def _warn(predictor: Predictor, value: RunInput, prediction: Prediction) -> None:
    for note in predictor.notes(value, prediction):
        report("warning", note)


def write_attention(
    predictor: Predictor, text: str, options: Options, attention: AttentionOptions, output: Output
) -> None:
    """The attention weights of a prediction, as a page, and of an image as a figure."""
    names = {field.name for field in fields(DecodeOptions)} | {"context", "ctc_weight"}
    tracing = {name: value for name, value in options.items() if name in names}
    trace = predictor.trace(text, None, False, options.get("truncate", False), tracing)
    if attention.explore:
        trace.explore(attention.explore)
    if attention.overlay:
        trace.overlay(attention.overlay, attention.site, attention.head, rollout=attention.rollout)
    for path in filter(None, (attention.explore, attention.overlay)):
        if not output.quiet:
            report("note", f"attention weights: {path}")


def write_vectors(
    predictor: Any, inputs: list[str] | None, rows: FileOptions, path: Path, truncate: bool, size: int, output: Output
) -> None:
    """Embed each input, row or line of stdin, and write a float32 array (inputs, width) in numpy's format."""
    values = read_inputs(predictor, inputs, rows, has_context=False, quiet=output.quiet)
    count = truncated = width = 0
    with TemporaryFile() as buffer:  # the file is written when all inputs are read; memory holds one chunk
        while batch := list(islice(values, size * SORTED_BATCHES)):
            with _locating_errors(batch):
                encoded = predictor.encode_inputs([value.value for value in batch], truncate)
            vectors = predictor.embed(encoded, size)
            buffer.write(np.ascontiguousarray(vectors, "<f4").data)
            count += len(encoded)
            truncated += sum(row.truncated for row in encoded)
            width = vectors.shape[1]
        buffer.seek(0)
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
            np.lib.format.write_array_header_1_0(file, header)
            copyfileobj(buffer, file)
    if output.json or not output.quiet:
        emit({"written": path, "texts": count, "width": width, "truncated": truncated}, output, "vectors")
