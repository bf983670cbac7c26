"""`regard evaluate` of question-answering models: SQuAD's exact match and F1, and the best threshold for no answer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from regard.config.recipe import Recipe
from regard.data.cache import cache_folder
from regard.errors import UserError
from regard.metrics.bootstrap import paired_test
from regard.metrics.squad import SCORES
from regard.models.heads.token import SpanClassifier
from regard.progress import Progress, counted
from regard.tasks.answer.options import AnswerData
from regard.tasks.answer.spans import MAX_WINDOW, best_threshold, find_spans, percentages, rank_answers, report
from regard.tasks.answer.windows import Windows, prepare
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import Evaluation, EvaluationRequest, prediction_rows, require_same_task, resolve_split

CHUNK = 256  # questions per update of the progress bar


class Answered(NamedTuple):
    """The best span of a question, the margin of no answer over it, and the reference answers."""

    location: str
    question: str
    text: str
    margin: float
    golds: list[str]


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """Scores of one model, also of its unanswerable questions alone; of two models also the paired test of F1."""
    description = "a question-answering model"
    request.allow(description, "source", "text_pair", "target", "columns", "compare", "predictions")
    require_same_task(models, description)
    question, context, answer = (request.get(name) or None for name in ("source", "text_pair", "target"))
    data = {"question": question, "context": context, "answer": answer, "columns": request.columns or None}
    scored, split = resolve_split(models[0].recipe, "answer", request.file, " of questions", split_by="source", **data)
    datasets = [_prepare(model, scored, split) for model in models]
    if len(models) > 1:
        first, second = ([windows.question(index).id for index in range(windows.questions)] for windows in datasets)
        if first != second:
            raise UserError("--compare: the two models skip different questions, so their scores cannot be compared")
    facts = datasets[0].report
    results: dict[str, Any] = {"samples": facts.kept, "split": request.file or split}
    if facts.skipped:
        results["skipped"] = {reason: skip.count for reason, skip in facts.skipped.items()}
    with counted("answering", facts.kept * len(models), request.quiet) as progress:
        answered = [
            _answer(model.network, windows, request.batch_size, progress)
            for model, windows in zip(models, datasets, strict=True)
        ]
    locations, questions, texts, margins, golds = zip(*answered[0], strict=True)
    predictions = []
    for model, answers in zip(models, answered, strict=True):
        # "No answer" is possible if the model was trained with it, or some questions have none.
        allow_none = model.network.allows_no_answer or not all(golds)
        predictions.append(["" if allow_none and answer.margin > 0 else answer.text for answer in answers])
    results |= report(predictions[0], golds)
    if not all(golds):
        results["best_threshold"] = {}
        for name, values in percentages(texts, golds).items():
            threshold, reached = best_threshold(margins, values / 100, [bool(gold) for gold in golds])
            results["best_threshold"][name] = {"threshold": threshold, "reached": reached}
    if len(models) > 1:
        values = [percentages(texts, golds) for texts in predictions]
        results["comparison"] = [paired_test(name, *(each[name] for each in values)).to_dict() for name in SCORES]
    return Evaluation(results, prediction_rows(locations, questions, golds, predictions))


def _prepare(model: LoadedModel, scored: Recipe, split: str) -> Windows:
    """The questions of a split in windows as the model has them when it predicts."""
    trained = AnswerData.of(model.recipe) if model.recipe else None
    length = (trained.max_length if trained else 0) or min(MAX_WINDOW, model.network.max_positions)
    data = AnswerData.of(scored)
    data = replace(data, stride=(trained or data).stride or max(1, length // 2))
    return prepare(data, split, model.processor.target, cache_folder(), length, Path(scored.origin))


def _answer(network: SpanClassifier, windows: Windows, batch_size: int, progress: Progress) -> list[Answered]:
    answers: list[Answered] = []
    for start in range(0, windows.questions, CHUNK):
        indices = range(start, min(start + CHUNK, windows.questions))
        spans = find_spans(network, windows, indices, batch_size)
        for index, candidates in zip(indices, spans, strict=True):
            question = windows.question(index)
            text = rank_answers(candidates, windows.spans(index), question.context)[0].text
            golds = [gold.text for gold in question.answers]
            answers.append(Answered(question.location, question.text, text, candidates.margin, golds))
        progress(len(indices))
    return answers
