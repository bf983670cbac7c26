"""`regard evaluate` of token classifiers: precision, recall and F1 of entities by type, or accuracy of the words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.targets import SingleLabelTargets
from regard.errors import UserError
from regard.metrics import entities
from regard.metrics.bootstrap import bootstrap_mean, paired_test
from regard.metrics.entities import is_span_tag
from regard.progress import counted
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import (
    Evaluation,
    EvaluationRequest,
    prediction_rows,
    require_same_task,
    resolve_split,
    warn_below_baseline,
)
from regard.tasks.tag.dataset import tag_indices
from regard.tasks.tag.files import read
from regard.tasks.tag.options import TagData
from regard.tasks.tag.predict import MAJORITY, baseline


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """Scores of one model, by entity type; of two models also the paired test of fully correct sentences."""
    description = "a token-classification model"
    request.allow(description, "source", "target", "compare", "predictions")
    require_same_task(models, description)
    columns = {"text": request.get("source") or None, "label": request.get("target") or None}
    recipe, split = resolve_split(models[0].recipe, "tag", request.file, ", such as test.conll", **columns)
    sentences = list(read(TagData.of(recipe), split, Path(recipe.origin), recipe.seed))
    if not sentences:
        raise UserError(f"{request.file or split}: no sentence to score")
    inputs, references, locations = zip(*sentences, strict=True)
    labels = models[0].network.labels
    targets = SingleLabelTargets(labels)
    constant = baseline([tag_indices(sentence, targets) for sentence in sentences], labels)  # rejects unknown tags
    with counted("reading", len(inputs) * len(models), request.quiet) as progress:
        options = {"batch_size": request.batch_size, "progress": progress}
        predictions = [[result.tags for result in model.run(inputs, **options)] for model in models]
    results: dict[str, Any] = {"sentences": len(inputs), "words": sum(map(len, inputs)), "split": request.file or split}
    has_spans = all(map(is_span_tag, labels))
    if has_spans:
        results |= entities.report(predictions[0], references)
    else:
        words = [_hits(*pair) for pair in zip(predictions[0], references, strict=True)]
        results["scores"] = [bootstrap_mean("accuracy", np.concatenate(words))]
    results["majority_baseline"] = constant["accuracy"]
    warn_below_baseline(results, "f1" if has_spans else "accuracy", constant, MAJORITY)
    if len(models) > 1:
        hits = [_hits(tags, references) for tags in predictions]
        results["comparison"] = paired_test("whole_sentences", *hits).to_dict()
    return Evaluation(results, prediction_rows(locations, inputs, references, predictions))


def _hits(predictions: Sequence[Any], references: Sequence[Any]) -> np.ndarray:
    """100 for each correct prediction, else 0."""
    pairs = zip(predictions, references, strict=True)
    return 100.0 * np.array([prediction == reference for prediction, reference in pairs], float)
