"""Questions about texts that hold their answers, as files have them; an error names file and line, or the question.

train-v1.1.json    SQuAD: data → paragraphs → qas, read article by article; v2.0's `is_impossible` too
squad.jsonl        a line each: {"context", "question", "answers": {"text": […], "answer_start": […]}}, answers as a
                   list of {"text", "answer_start"}, or a paragraph {"context", "qas": […]}
faq.csv .tsv       columns context, question, answer; answer_start, where an answer stands more than once

Without a start an answer is where it stands first. A question without an answer has none in its text.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.data.documents import decoded
from regard.data.files import COLUMNS, each_of, is_text, json_lines, rows, several
from regard.data.splits.hashed import file_of, held
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

BEGIN = re.compile(r'"data"\s*:\s*\[')

CHUNK = 1 << 20  # bytes read at once

LARGEST = 1 << 28  # characters of one article

START = ("answer_start", "start")  # keys of where an answer begins


class Gold(NamedTuple):
    """An answer as it stands in its text, from a character on."""

    text: str
    start: int


class Question(NamedTuple):
    """What is asked of a text; without an answer, that it says nothing of it."""

    id: str
    text: str
    context: str
    answers: tuple[Gold, ...]
    group: str  # equal ones lie in the same part
    location: str


def read(data: "DataOptions", split: str, base_dir: Path | None = None) -> Iterator[Question]:
    """Every question of a part in the order of its file; parts are held out by the text that is asked about."""
    yield from held(questions(file_of(data, split, base_dir), data), data, split)


def questions(path: Path, data: "DataOptions") -> Iterator[Question]:
    """Every question of a file, or of all that a pattern means."""
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
        raise UserError(f"{path}: cannot tell what kind of file this is; possible: .json (SQuAD), .jsonl, .tsv, .csv")


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def articles(path: Path) -> Iterator[Any]:
    """The articles of a file as SQuAD has it, one after another: memory holds one and what was read with it."""
    decode, held, inside = json.JSONDecoder().raw_decode, "", False
    for text in decoded(path, 0, None, CHUNK):
        held += text
        if not inside and (begin := BEGIN.search(held)):
            held, inside = held[begin.end() :], True
        while inside:
            held = held.lstrip(" \t\r\n,")
            if held.startswith("]"):
                return
            try:
                article, end = decode(held)
            except (ValueError, RecursionError) as error:
                if len(held) > LARGEST:
                    raise UserError(f"{path}: not a JSON article in {len(held):,} characters ({error})") from None
                break
            yield article
            held = held[end:]
    what = "ends inside an article" if inside else 'has no "data": […], as SQuAD has'
    raise UserError(f"{path}: not JSON as SQuAD has it: {what}")


def _of_article(article: Any, path: Path, split_by: str) -> Iterator[Question]:
    if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
        raise UserError(f'{path}: an article without "paragraphs": […]: {json.dumps(article)[:80]}')
    title = str(article.get("title", ""))
    for number, paragraph in enumerate(article["paragraphs"], 1):
        location = f"{path}: {title or 'article'}, paragraph {number}"
        yield from _of_paragraph(_table(paragraph, location) | {"title": title}, "context", split_by, location)


def _of_lines(path: Path, data: "DataOptions") -> Iterator[Question]:
    context, question = data.context or "context", data.question or "question"
    for number, table in enumerate(json_lines(path), 1):
        if table is None:
            continue
        location = f"{path}:{number}"
        if "qas" not in table:
            table["qas"] = [
                {
                    "id": table.get("id", number),
                    "question": _text(table, question, location),
                    "answers": _answers(table, data.answer, location),
                    "is_impossible": table.get("is_impossible", False),
                }
            ]
        yield from _of_paragraph(table, context, data.split_by, location)


def _answers(table: dict[str, Any], named: str, location: str) -> Any:
    """What stands under `answers` or `answer`, or as it is named; to have none must be said."""
    for key in (named,) if named else ("answers", "answer"):
        if key in table:
            return table[key]
    if table.get("is_impossible"):
        return []
    raise UserError(f"{location}: no '{named or 'answers'}'; it has: {', '.join(table)}; a question without one has []")


def _of_paragraph(table: dict[str, Any], key: str, split_by: str, location: str) -> Iterator[Question]:
    context = _text(table, key, location)
    group = context if split_by in ("source", key) else _text(table, split_by, location)
    for number, value in enumerate(table["qas"] if isinstance(table.get("qas"), list) else [], 1):
        asked = _table(value, location)
        here = f"{location}, question {asked.get('id', number)}"
        golds = tuple(_golds(asked.get("answers"), context, here))
        if asked.get("is_impossible"):
            golds = ()
        name = str(asked.get("id", f"{location}#{number}"))
        yield Question(name, _text(asked, "question", here), context, golds, group, here)


def _golds(given: Any, context: str, location: str) -> Iterator[Gold]:
    """Answers as SQuAD lists them, as columns of texts and starts, or as texts alone."""
    for text, start in _listed(given, location):
        if not isinstance(text, str) or not (start is None or type(start) is int):
            raise UserError(
                f"{location}: an answer is {text!r:.60} from {start!r:.20} on; expected text, and a whole number"
            )
        if text:
            yield stand(text, start, context, location)


def _listed(given: Any, location: str) -> list[tuple[Any, Any]]:
    """Each answer's text and start, in whichever way they are listed."""
    if isinstance(given, dict):
        texts, starts = _many(given.get("text")), _many(_start(given))
        if starts and len(texts) != len(starts):
            raise UserError(f"{location}: {len(texts)} answers, but {len(starts)} starts")
        return list(zip(texts, starts or [None] * len(texts), strict=True))
    return [(one.get("text"), _start(one)) if isinstance(one, dict) else (one, None) for one in _many(given)]


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _start(answer: dict[str, Any]) -> Any:
    return next((answer[key] for key in START if key in answer), None)


def stand(text: str, start: int | None, context: str, location: str) -> Gold:
    """An answer where it stands; it must, letter for letter."""
    found = context.find(text)
    if found < 0:
        raise UserError(f"{location}: the answer {text!r:.80} stands nowhere in its text {context!r:.60}…")
    if start is None:
        return Gold(text, found)
    if start < 0 or context[start : start + len(text)] != text:
        there = context[max(0, start) : max(0, start) + len(text)]
        raise UserError(
            f"{location}: the answer {text!r:.80} does not stand at {start}, where {there!r:.80} does; "
            f"it stands at {found}"
        )
    return Gold(text, start)


def _table(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{location}: a {type(value).__name__}, but must be a JSON object")
    return value


def _text(table: dict[str, Any], key: str, location: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        said = f"'{key}' is a {type(value).__name__}, but must be a string" if key in table else f"no '{key}'"
        raise UserError(f"{location}: {said}; it has: {', '.join(table)}")
    if not is_text(value):
        raise UserError(f"{location}: half a surrogate pair (\\ud800 to \\udfff) is not text")
    return value


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_columns(path: Path, data: "DataOptions") -> Iterator[Question]:
    context, question, answer = data.context or "context", data.question or "question", data.answer or "answer"
    group = "" if data.split_by in ("source", context) else data.split_by
    required = {"data.context": context, "data.question": question, "data.answer": answer}
    required |= {"data.split_by": group} if group else {}
    for number, (fields, location) in enumerate(rows(path, data.columns, required), 1):
        text, said = fields[context], fields[answer]
        begin = fields.get("answer_start", "").strip()
        if begin and not begin.isdecimal():
            raise UserError(f"{location}: answer_start is {begin!r}; expected a whole number")
        golds = (stand(said, int(begin) if begin else None, text, location),) if said else ()
        key = fields.get("id", "") or str(number)
        yield Question(key, fields[question], text, golds, fields[group] if group else text, location)
