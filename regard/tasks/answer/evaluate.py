"""`regard evaluate` of question-answering models: SQuAD's exact match and F1, and the best threshold for no answer."""

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
from regard.tasks.answer.spans import best_threshold, rank_answers, report
from regard.tasks.answer.windows import Windows, prepare
from regard.tasks.scoring import (
    Evaluation,
    EvaluationRequest,
    column_names,
    prediction_rows,
    require_same_task,
    resolve_split,
)

CHUNK = 256  # questions per update of the progress bar


class Selection(NamedTuple):
    """The questions to score: a split of data options, whose files are relative to `base_dir`."""

    name: str
    data: AnswerData
    split: str
    base_dir: Path


class Answered(NamedTuple):
    """The best span of a question, the margin of no answer over it, and the reference answers."""

    location: str
    question: str
    text: str
    margin: float
    golds: list[str]


def select(
    recipe: Recipe | None, file: str | None, columns: tuple[str, str, str], names: tuple[str, ...] = ()
) -> Selection:
    """The questions of the file, else of the recipe's test split, else of its validation split."""
    question, context, answer = columns
    data: dict[str, Any] = column_names(recipe, question=question, context=context, answer=answer)
    data |= {"columns": names} if names else {}
    recipe, split = resolve_split(recipe, "answer", file, " of questions", split_by="source", **data)
    return Selection(file or split, AnswerData.of(recipe), split, Path(recipe.origin))


def evaluate_task(models: list[Any], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of question-answering models."""
    description = "a question-answering model"
    request.allow(description, "source", "text_pair", "target", "columns", "compare", "predictions")
    require_same_task(models, description)
    columns = (request.get("source"), request.get("text_pair"), request.get("target"))
    selection = select(models[0].recipe, request.file, columns, request.columns)
    return evaluate(models, selection, request.batch_size, request.quiet)


def evaluate(models: list[Any], selection: Selection, batch_size: int = 32, quiet: bool = True) -> Evaluation:
    """Scores of one model, also of its unanswerable questions alone; of two models also the paired test of F1."""
    datasets = [_prepare(model, selection) for model in models]
    if len(models) > 1:
        first, second = ([windows.question(index).id for index in range(windows.questions)] for windows in datasets)
        if first != second:
            raise UserError("--compare: the two models skip different questions, so their scores cannot be compared")
    facts = datasets[0].report
    results: dict[str, Any] = {"samples": facts.kept, "split": selection.name}
    if facts.skipped:
        results["skipped"] = {reason: skip.count for reason, skip in facts.skipped.items()}
    with counted("answering", facts.kept * len(models), quiet) as progress:
        answered = [
            _answer(model, windows, batch_size, progress) for model, windows in zip(models, datasets, strict=True)
        ]
    locations = [answer.location for answer in answered[0]]
    questions = [answer.question for answer in answered[0]]
    golds = [answer.golds for answer in answered[0]]
    predictions = []
    for model, answers in zip(models, answered, strict=True):
        # "No answer" is possible if the model was trained with it, or some questions have none.
        allow_none = model.network.allows_no_answer or not all(golds)
        predictions.append(["" if allow_none and answer.margin > 0 else answer.text for answer in answers])
    results |= _scores(answered[0], predictions[0])
    if len(models) > 1:
        results["comparison"] = _compare(predictions, golds)
    return Evaluation(results, prediction_rows(locations, questions, golds, predictions))


def _prepare(model: Any, selection: Selection) -> Windows:
    """The questions in windows as the model has them when it predicts."""
    data = model.recipe.data if model.recipe else selection.data
    length = (data.max_length if model.recipe else 0) or min(MAX_WINDOW, model.network.max_positions)
    data = replace(selection.data, stride=data.stride or max(1, length // 2))
    return prepare(data, selection.split, model.vocabulary.target, cache_folder(), length, selection.base_dir)


def _answer(model: Any, windows: Windows, batch_size: int, progress: Any) -> list[Answered]:
    answers: list[Answered] = []
    for start in range(0, windows.questions, CHUNK):
        indices = range(start, min(start + CHUNK, windows.questions))
        spans = find_spans(model.network, windows, indices, batch_size)
        for index, candidates in zip(indices, spans, strict=True):
            question = windows.question(index)
            text = rank_answers(candidates, windows.spans(index), question.context)[0].text
            golds = [gold.text for gold in question.answers]
            answers.append(Answered(question.location, question.text, text, candidates.margin, golds))
        progress(len(indices))
    return answers


def _scores(answers: list[Answered], predictions: list[str]) -> dict[str, Any]:
    """Exact match and F1; if some questions have no answer, also the best threshold for no answer."""
    golds = [answer.golds for answer in answers]
    results = report(predictions, golds)
    if all(golds):
        return results
    margins = [answer.margin for answer in answers]
    answerable = [bool(gold) for gold in golds]
    thresholds = {}
    for name, score in SCORES.items():
        values = [score(answer.text, answer.golds) for answer in answers]
        threshold, reached = best_threshold(margins, values, answerable)
        thresholds[name] = {"threshold": threshold, "reached": reached}
    return results | {"best_threshold": thresholds}


def _compare(predictions: list[list[str]], golds: list[list[str]]) -> list[dict[str, Any]]:
    """The paired test of two models for each metric."""
    tests = []
    for name, score in SCORES.items():
        values = [
            100.0 * np.array([score(text, gold) for text, gold in zip(texts, golds, strict=True)])
            for texts in predictions
        ]
        tests.append(paired_test(name, *values).to_dict())
    return tests
