"""`regard evaluate` of sequence-to-sequence models: BLEU, chrF and exact match; of pronunciations, error rates."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.metrics import bleu, pronunciations
from regard.progress import counted
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import (
    Evaluation,
    EvaluationRequest,
    LineChart,
    prediction_rows,
    require_same_task,
    resolve_split,
)
from regard.tasks.translate.dataset import Sample, group_references, samples
from regard.tasks.translate.options import TranslateData

LENGTH_GROUPS = 6
OPTIONS = ("source", "target", "truncate", "by_length", "plot", "predictions", "lowercase", "compare")


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of encoder–decoder models."""
    description = "an encoder–decoder model"
    request.allow(description, *OPTIONS, *request.decode)
    require_same_task(models, description)
    recipe = models[0].recipe
    lowercase = request.get("lowercase", None)
    if lowercase is None:
        lowercase = recipe is not None and recipe.tokenizer.lowercase
    sides = {name: request.get(name) or None for name in ("source", "target")}
    resolved, split = resolve_split(recipe, "translate", request.file, ", such as test.{de,en}", **sides)
    pairs = list(samples(resolved, split))
    if not pairs:
        raise UserError(f"{getattr(resolved.data, split)}: no samples to score")
    by_length = request.get("by_length", False) or bool(request.get("plot"))
    if TranslateData.of(resolved).pronunciations:
        if by_length:
            raise UserError("--by-length and --plot are about BLEU; pronunciations have word and phoneme error rates")
        return evaluate_pronunciations(models, pairs, request, split)
    options = {**request.decode, "batch_size": request.batch_size, "truncate": request.get("truncate", False)}
    evaluation = evaluate(models, pairs, request.file or split, lowercase, by_length, request.quiet, **options)
    if by_length:
        names = [Path(name).name for name in request.names]
        evaluation.chart = length_chart(names, evaluation.results["by_length"])
    return evaluation


def evaluate(
    models: Sequence[LoadedModel],
    pairs: Sequence[Sample],
    split: str = "test",
    lowercase: bool = False,
    by_length: bool = False,
    quiet: bool = True,
    **options: Any,
) -> Evaluation:
    """Scores of one model, or of two with the paired test of their difference."""
    sources = [pair.source for pair in pairs]
    references = [pair.target for pair in pairs]
    with counted("translating", len(sources) * len(models), quiet) as progress:
        outputs = [[output.text for output in model.run(sources, **options, progress=progress)] for model in models]
    scores = [bleu.score(texts, references, lowercase) for texts in outputs]
    results: dict[str, Any] = {"samples": len(references), "split": split}
    if by_length:
        results["by_length"] = scores_by_length(sources, references, outputs, lowercase)
    if len(models) == 1:
        results["scores"] = scores[0]
    else:
        results["scores"] = [
            {"model": name, **asdict(score)}
            for name, model_scores in zip(("first", "second"), scores, strict=True)
            for score in model_scores
        ]
        differences = bleu.compare(outputs[0], outputs[1], references, lowercase)
        results["comparison"] = [difference.to_dict() for difference in differences]
    return Evaluation(results, prediction_rows(range(1, len(sources) + 1), sources, references, outputs))


def evaluate_pronunciations(
    models: Sequence[LoadedModel], pairs: Sequence[Sample], request: EvaluationRequest, split: str
) -> Evaluation:
    """Word and phoneme error rate, where each pronunciation of a word is right."""
    words = group_references(pairs)
    references = list(words.values())
    options = {**request.decode, "batch_size": request.batch_size, "truncate": request.get("truncate", False)}
    with counted("translating", len(words) * len(models), request.quiet) as progress:
        outputs = [[each.text for each in model.run(list(words), **options, progress=progress)] for model in models]
    scores = [pronunciations.score(texts, references) for texts in outputs]
    results: dict[str, Any] = {"samples": len(words), "split": request.file or split, "scores": scores[0]}
    if len(models) > 1:
        results["scores"] = [
            {"model": name, **asdict(score)}
            for name, model_scores in zip(("first", "second"), scores, strict=True)
            for score in model_scores
        ]
        differences = pronunciations.compare(outputs[0], outputs[1], references)
        results["comparison"] = [difference.to_dict(higher_is_better=False) for difference in differences]
    texts = [" | ".join(targets) for targets in references]
    return Evaluation(results, prediction_rows(range(1, len(words) + 1), list(words), texts, outputs))


def scores_by_length(
    sources: list[str], references: list[str], outputs: list[list[str]], lowercase: bool
) -> list[dict[str, Any]]:
    """BLEU over groups of similar source length, about equally many samples each: Bahdanau et al. 2015, figure 2."""
    words = np.array([len(source.split()) for source in sources])
    edges = np.unique(np.quantile(words, np.linspace(0, 1, LENGTH_GROUPS + 1), method="nearest"))
    edges = edges if len(edges) > 1 else np.append(edges, edges[-1])
    rows = []
    for low, high in pairwise(edges):
        first = low + (low != edges[0])
        inside = np.flatnonzero((words >= first) & (words <= high))
        if not len(inside):
            continue
        row: dict[str, Any] = {
            "words": f"{first}–{high}",
            "mean": round(float(words[inside].mean()), 1),
            "samples": len(inside),
        }
        for name, texts in zip(("bleu", "second"), outputs, strict=False):
            group = [texts[index] for index in inside]
            row[name] = bleu.quick(group, [references[index] for index in inside], lowercase)["bleu"]
        rows.append(row)
    return rows


def length_chart(names: list[str], rows: list[dict[str, Any]]) -> LineChart:
    """BLEU by source length, a line per model."""
    lines = {
        name: ([(row["mean"], row[key]) for row in rows], list[float]())
        for name, key in zip(names, ("bleu", "second"), strict=False)
    }
    return LineChart("BLEU by source length", "words in the source (mean of each group)", "BLEU", lines)
