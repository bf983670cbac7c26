"""`regard evaluate` of a model that tags words: spans found right, by kind, and words tagged right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.targets import SingleLabelTargets
from regard.errors import UserError
from regard.metrics import entities
from regard.metrics.bootstrap import bootstrap_mean, paired_test
from regard.metrics.iob import is_span_tag
from regard.progress import counted
from regard.tasks.scoring import (
    Evaluation,
    EvaluationRequest,
    column_names,
    prediction_rows,
    require_same_task,
    resolve_split,
)
from regard.tasks.tag.dataset import tag_indices
from regard.tasks.tag.files import Sentence, read
from regard.tasks.tag.options import TagData


class Selection(NamedTuple):
    """TaggedBatch sentences, and where they come from."""

    name: str
    sentences: list[Sentence]


def select(model: Any, file: str | None, words: str, tags: str) -> Selection:
    """The file's sentences; without one the test part of the model's recipe, else its validation part."""
    named = column_names(model.recipe, text=words, label=tags)
    recipe, part = resolve_split(model.recipe, "tag", file, ", such as test.conll", **named)
    found = list(read(TagData.of(recipe), part, Path(recipe.origin), recipe.seed))
    for sentence in found:
        tag_indices(sentence, SingleLabelTargets(model.network.labels))
    if not found:
        raise UserError(f"{file or part}: no sentence to score")
    return Selection(file or part, found)


def evaluate_task(models: list[Any], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of token-classification models."""
    description = "a token-classification model"
    request.allow(description, "source", "target", "compare", "predictions")
    require_same_task(models, description)
    chosen = select(models[0], request.file, request.get("source"), request.get("target"))
    return evaluate(models, chosen, request.batch_size, request.quiet)


def evaluate(models: list[Any], chosen: Selection, batch_size: int = 32, quiet: bool = True) -> Evaluation:
    """Scores of one model with a row a kind; of two also the paired test of whole sentences that are right."""
    inputs = [sentence.words for sentence in chosen.sentences]
    wanted = [sentence.tags for sentence in chosen.sentences]
    with counted("reading", len(inputs) * len(models), quiet) as progress:
        options = {"batch_size": batch_size, "progress": progress}
        answers = [[answer.tags for answer in model.run(inputs, **options)] for model in models]
    found: dict[str, Any] = {"sentences": len(inputs), "words": sum(map(len, inputs)), "split": chosen.name}
    rows = prediction_rows([sentence.location for sentence in chosen.sentences], inputs, wanted, answers)
    if all(map(is_span_tag, models[0].network.labels)):
        found |= entities.report(answers[0], wanted)
    else:
        words = [_right(*pair) for pair in zip(answers[0], wanted, strict=True)]
        found["scores"] = [bootstrap_mean("accuracy", np.concatenate(words))]
    whole = [_right(each, wanted) for each in answers]
    return Evaluation(
        found | ({"comparison": paired_test("whole_sentences", *whole).to_dict()} if len(models) > 1 else {}), rows
    )


def _right(found: Sequence[Any], wanted: Sequence[Any]) -> np.ndarray:
    """For each 100 where it is right, else 0."""
    return 100.0 * np.array([one == other for one, other in zip(found, wanted, strict=True)], float)
