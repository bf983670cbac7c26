"""Files of questions about passages that contain their answers. Errors name file and line, or the question.

train-v1.1.json    SQuAD: data → paragraphs → qas, read article by article; v2.0's `is_impossible` too
squad.jsonl        one per line: {"context", "question", "answers": {"text": […], "answer_start": […]}}, answers as a
                   list of {"text", "answer_start"}, or a paragraph {"context", "qas": […]}
faq.csv .tsv       columns context, question, answer; answer_start, if an answer occurs more than once

Without a start, the first occurrence of the answer counts. A question may have no answer in its passage.
"""

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.documents import decoded
from regard.data.files import COLUMNS, each_of, is_text, json_lines, rows, several
from regard.data.splits.hashed import file_of, held
from regard.errors import UserError
from regard.tasks.answer.options import AnswerData

BEGIN = re.compile(r'"data"\s*:\s*\[')

MAX_BEGIN = 1 << 10  # characters of it

CHUNK = 1 << 20  # bytes read at once

MAX_ARTICLE = 1 << 28  # characters

START_KEYS = ("answer_start", "start")


class Gold(NamedTuple):
    """An answer, and the index of its first character in the text."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a text; without answers, the text does not answer it."""

    id: str
    text: str
    context: str
    answers: tuple[Gold, ...] = ()
    group: str = ""  # questions of equal groups are in the same split
    location: str = ""


def read(data: AnswerData, split: str, base_dir: Path | None = None) -> Iterator[Question]:
    """Every question of a split in the order of its file; splits are held out by the text of a question."""
    yield from held(questions(file_of(data, split, base_dir), data), data, split)


def questions(path: Path, data: AnswerData) -> Iterator[Question]:
    """Every question of a file, or of all that match a pattern."""
    if several(path):
        yield from each_of(path, lambda file: questions(file, data))
        return
    name = path.name.removesuffix(".gz")
    if name.endswith(".json"):
        for article in articles(path):
            yield from _of_article(article, path, data.split_by)
    elif name.endswith(".jsonl"):
        yield from _of_lines(path, data)
    elif name.endswith(COLUMNS):
        yield from _of_columns(path, data)
    else:
        raise UserError(f"{path}: unknown file type; expected one of: .json (SQuAD), .jsonl, .tsv, .csv")


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def articles(path: Path) -> Iterator[Any]:
    """The articles of a SQuAD file, one after another: memory holds one and the chunk that was read with it."""
    decode = json.JSONDecoder().raw_decode
    buffer = ""
    inside = False
    needed = 0  # characters before it is worth trying again: time stays linear
    for text in chain(decoded(path, 0, None, CHUNK), [""]):
        buffer += text
        needed = needed if text else 0  # at the end
        if not inside:
            begin = BEGIN.search(buffer)
            inside = begin is not None
            buffer = buffer[begin.end() :] if begin else buffer[-MAX_BEGIN:]
        while inside and len(buffer) >= needed:
            buffer = buffer.lstrip(" \t\r\n,")
            if buffer.startswith("]"):
                return
            try:
                article, end = decode(buffer)
            except (ValueError, RecursionError) as error:
                if len(buffer) > MAX_ARTICLE:
                    raise UserError(f"{path}: not a JSON article in {len(buffer):,} characters ({error})") from None
                needed = 2 * len(buffer)
                break
            yield article
            buffer = buffer[end:]
            needed = 0
    problem = "ends inside an article" if inside else 'has no "data": […], as SQuAD has'
    raise UserError(f"{path}: not JSON as SQuAD has it: {problem}")


def _of_article(article: Any, path: Path, split_by: str) -> Iterator[Question]:
    if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
        raise UserError(f'{path}: an article without "paragraphs": […]: {json.dumps(article)[:80]}')
    title = str(article.get("title", ""))
    for index, paragraph in enumerate(article["paragraphs"], 1):
        location = f"{path}: {title or 'article'}, paragraph {index}"
        yield from _of_paragraph(_table(paragraph, location) | {"title": title}, "context", split_by, location)


def _of_lines(path: Path, data: AnswerData) -> Iterator[Question]:
    context = data.context or "context"
    question = data.question or "question"
    for line_number, table in enumerate(json_lines(path), 1):
        if table is None:
            continue
        location = f"{path}:{line_number}"
        if "qas" not in table:
            table["qas"] = [
                {
                    "id": table.get("id", line_number),
                    "question": _text(table, question, location),
                    "answers": _answers(table, data.answer, location),
                    "is_impossible": table.get("is_impossible", False),
                }
            ]
        yield from _of_paragraph(table, context, data.split_by, location)


def _answers(table: dict[str, Any], column: str, location: str) -> Any:
    """The value of `answers` or `answer`, or of the named column; that there is none must be explicit."""
    for key in (column,) if column else ("answers", "answer"):
        if key in table:
            return table[key]
    if table.get("is_impossible"):
        return []
    raise UserError(
        f"{location}: no '{column or 'answers'}'; it has: {', '.join(table)}; a question without one has []"
    )


def _of_paragraph(table: dict[str, Any], key: str, split_by: str, location: str) -> Iterator[Question]:
    context = _text(table, key, location)
    group = context if split_by in ("source", key) else _text(table, split_by, location)
    for index, value in enumerate(table["qas"] if isinstance(table.get("qas"), list) else [], 1):
        question = _table(value, location)
        here = f"{location}, question {question.get('id', index)}"
        golds = tuple(_golds(question.get("answers"), context, here))
        if question.get("is_impossible"):
            golds = ()
        name = str(question.get("id", f"{location}#{index}"))
        yield Question(name, _text(question, "question", here), context, golds, group, here)


def _golds(answers: Any, context: str, location: str) -> Iterator[Gold]:
    """Answers as SQuAD lists them, as columns of texts and starts, or as texts alone."""

    def as_list(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [] if value is None else [value]

    def fields(answer: Any) -> tuple[Any, Any]:
        if not isinstance(answer, dict):
            return answer, None
        return answer.get("text"), next((answer[key] for key in START_KEYS if key in answer), None)

    pairs = [fields(answer) for answer in as_list(answers)]
    if isinstance(answers, dict):
        texts, starts = map(as_list, fields(answers))
        if starts and len(texts) != len(starts):
            raise UserError(f"{location}: {len(texts)} answers, but {len(starts)} starts")
        pairs = list(zip(texts, starts or [None] * len(texts), strict=True))
    for text, start in pairs:
        if not isinstance(text, str) or not (start is None or type(start) is int):
            raise UserError(
                f"{location}: an answer is {text!r:.60} from {start!r:.20} on; expected text, and a whole number"
            )
        if text:
            yield locate(text, start, context, location)


def locate(text: str, start: int | None, context: str, location: str) -> Gold:
    """An answer with its start; it must occur in the text, character for character."""
    first = context.find(text)
    if first < 0:
        raise UserError(f"{location}: the answer {text!r:.80} does not occur in its text {context!r:.60}…")
    if start is None:
        return Gold(text, first)
    if start < 0 or context[start : start + len(text)] != text:
        actual = context[max(0, start) : max(0, start) + len(text)]
        raise UserError(
            f"{location}: the answer {text!r:.80} is not at {start}, which has {actual!r:.80}; it is at {first}"
        )
    return Gold(text, start)


def _table(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{location}: a {type(value).__name__}, but must be a JSON object")
    return value


def _text(table: dict[str, Any], key: str, location: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        problem = f"'{key}' is a {type(value).__name__}, but must be a string" if key in table else f"no '{key}'"
        raise UserError(f"{location}: {problem}; it has: {', '.join(table)}")
    if not is_text(value):
        raise UserError(f"{location}: half a surrogate pair (\\ud800 to \\udfff) is not text")
    return value


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_columns(path: Path, data: AnswerData) -> Iterator[Question]:
    context = data.context or "context"
    question = data.question or "question"
    answer = data.answer or "answer"
    group = "" if data.split_by in ("source", context) else data.split_by
    required = {"data.context": context, "data.question": question, "data.answer": answer}
    required |= {"data.split_by": group} if group else {}
    for index, (fields, location) in enumerate(rows(path, data.columns, required), 1):
        text = fields[context]
        start = fields.get("answer_start", "").strip()
        if start and not start.isdecimal():
            raise UserError(f"{location}: answer_start is {start!r}; expected a whole number")
        golds = ()
        if fields[answer]:
            golds = (locate(fields[answer], int(start) if start else None, text, location),)
        key = fields.get("id", "") or str(index)
        yield Question(key, fields[question], text, golds, fields[group] if group else text, location)
