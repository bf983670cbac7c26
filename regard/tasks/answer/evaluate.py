"""`regard evaluate` of a model that answers questions: SQuAD's exact match and F1, and where to say nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.config.recipe import Recipe
from regard.data.cache import cache_folder
from regard.errors import UserError
from regard.metrics.bootstrap import paired_test
from regard.metrics.squad import SCORES
from regard.progress import counted
from regard.tasks.answer.options import AnswerData
from regard.tasks.answer.scoring import MAX_WINDOW, find_spans
from regard.tasks.answer.spans import best_threshold, report, tell
from regard.tasks.answer.windows import Windows, prepare
from regard.tasks.scoring import (
    Evaluation,
    EvaluationRequest,
    column_names,
    prediction_rows,
    require_same_task,
    resolve_split,
)

AT_ONCE = 256  # questions between two strokes of the bar


class Selection(NamedTuple):
    """Where the questions stand that are scored."""

    name: str
    data: AnswerData
    part: str
    beside: Path


class Told(NamedTuple):
    """The best span of a question, by how much no answer is better than it, and the answers that are right."""

    place: str
    question: str
    text: str
    margin: float
    golds: list[str]


def select(
    recipe: Recipe | None, file: str | None, columns: tuple[str, str, str], names: tuple[str, ...] = ()
) -> Selection:
    """Where the questions stand: the file, else the test part of the model's recipe, else its validation part."""
    question, context, answer = columns
    roles: dict[str, Any] = column_names(recipe, question=question, context=context, answer=answer)
    roles |= {"columns": names} if names else {}
    asked, part = resolve_split(recipe, "answer", file, " of questions", split_by="source", **roles)
    return Selection(file or part, AnswerData.of(asked), part, Path(asked.origin))


def evaluate_task(models: list[Any], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of question-answering models."""
    description = "a question-answering model"
    request.allow(description, "source", "text_pair", "target", "columns", "compare", "predictions")
    require_same_task(models, description)
    columns = (request.get("source"), request.get("text_pair"), request.get("target"))
    chosen = select(models[0].recipe, request.file, columns, request.columns)
    return evaluate(models, chosen, request.batch_size, request.quiet)


def evaluate(models: list[Any], chosen: Selection, batch_size: int = 32, quiet: bool = True) -> Evaluation:
    """Scores of one model, of questions without an answer apart; of two also the paired test of their F1."""
    name, data, part, beside = chosen
    parts = [_prepared(model, data, part, beside) for model in models]
    if len(models) > 1 and not _same(*parts):
        raise UserError("--compare: the two models leave out different questions, so that their scores do not compare")
    first = parts[0].report
    found: dict[str, Any] = {"samples": first.kept, "split": name}
    if first.skipped:
        found["skipped"] = {reason: skip.count for reason, skip in first.skipped.items()}
    with counted("answering", first.kept * len(models), quiet) as progress:
        told = [_answers(model, each, batch_size, progress) for model, each in zip(models, parts, strict=True)]
    places, questions, golds = [[getattr(each, name) for each in told[0]] for name in ("place", "question", "golds")]
    said = [_said(some, model.network.allows_no_answer) for some, model in zip(told, models, strict=True)]
    rows = prediction_rows(places, questions, golds, said)
    found |= _scored(told[0], said[0])
    found |= {"comparison": _compare(said, golds)} if len(models) > 1 else {}
    return Evaluation(found, rows)


def _prepared(model: Any, data: AnswerData, part: str, beside: Path) -> Windows:
    """The questions in windows, cut as where the model is asked."""
    known = model.recipe.data if model.recipe else data
    length = (known.max_length if model.recipe else 0) or min(MAX_WINDOW, model.network.max_positions)
    data = replace(data, stride=known.stride or max(1, length // 2))
    return prepare(data, part, model.vocabulary.target, cache_folder(), length, beside)


def _answers(model: Any, windows: Windows, batch_size: int, progress: Any) -> list[Told]:
    told: list[Told] = []
    for start in range(0, windows.questions, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, windows.questions))
        for number, found in zip(numbers, find_spans(model.network, windows, numbers, batch_size), strict=True):
            question = windows.question(number)
            best = tell(found, windows.spans(number), question.context)[0].text
            golds = [gold.text for gold in question.answers]
            told.append(Told(question.location, question.text, best, found.margin, golds))
        progress(len(numbers))
    return told


def _said(told: list[Told], silent: bool) -> list[str]:
    """The answers; none where its score is the best, if the model was trained so or some questions have none."""
    silent = silent or not all(each.golds for each in told)
    return ["" if silent and each.margin > 0 else each.text for each in told]


def _scored(told: list[Told], said: list[str]) -> dict[str, Any]:
    """Exact match and F1; where some questions have no answer also the best bound for giving none."""
    golds = [each.golds for each in told]
    found = report(said, golds)
    if all(golds):
        return found
    margins, answerable = [each.margin for each in told], [bool(gold) for gold in golds]
    bounds = {}
    for name, score in SCORES.items():
        values = [score(each.text, each.golds) for each in told]
        threshold, reached = best_threshold(margins, values, answerable)
        bounds[name] = {"threshold": threshold, "reached": reached}
    return found | {"best_threshold": bounds}


def _compare(said: list[list[str]], golds: list[list[str]]) -> list[dict[str, Any]]:
    rows = [list(zip(some, golds, strict=True)) for some in said]
    return [
        paired_test(name, *(100.0 * np.array([score(*each) for each in some]) for some in rows)).to_dict()
        for name, score in SCORES.items()
    ]


def _same(first: Windows, second: Windows) -> bool:
    if first.questions != second.questions:
        return False
    return all(first.question(number).id == second.question(number).id for number in range(first.questions))
