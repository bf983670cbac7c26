"""`regard evaluate` of a model that embeds: whether its cosines rise with what people say of how alike two texts are.

Cer et al. 2017 (STS benchmark): pairs of texts with a number each; Pearson's and Spearman's correlation.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.files import find, rows
from regard.errors import UserError
from regard.metrics.correlation import correlations
from regard.progress import counted
from regard.tasks.scoring import Evaluation, EvaluationRequest

ROLES = (("text", "text_pair", "label"), ("text", "text2", "label"), ("sentence1", "sentence2", "score"))  # usual names


class Pair(NamedTuple):
    """Two texts, and how alike they are said to be."""

    one: str
    other: str
    score: float


class Selection(NamedTuple):
    """Pairs, where they come from, and how many were left out for want of a text or a number."""

    name: str
    pairs: list[Pair]
    skipped: int


def select(file: str | None, columns: tuple[str, ...], named: tuple[str, str, str]) -> Selection:
    """The file's pairs; `columns` are those of a file without header, `named` what is called otherwise."""
    if not file:
        raise UserError("embeddings are scored on a FILE of pairs: columns text, text_pair and label (a number)")
    path = find(file)
    one, other, label = (given or usual for given, usual in zip(named, _usual(path, columns), strict=True))
    pairs, skipped = [], 0
    required = {"--source": one, "--text-pair": other, "--target": label}
    for fields, place in rows(path, columns, required, {label: (int, float)}):
        if not all(fields[name].strip() for name in (one, other, label)):
            skipped += 1
            continue
        pairs.append(Pair(fields[one], fields[other], _number(fields[label], label, place)))
    if len(pairs) < 2:
        raise UserError(f"{path}: {len(pairs)} pairs; a correlation needs at least two")
    return Selection(file, pairs, skipped)


def _usual(path: Path, columns: tuple[str, ...]) -> tuple[str, str, str]:
    """The names that this file seems to use."""
    first = next(rows(path, columns)).fields
    seen = columns or {*first, *first.values()}  # of a table without `columns` the first line is the header, if any
    return max(ROLES, key=lambda names: len(set(names) & set(seen)))


def _number(given: str, column: str, place: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = np.nan
    if not np.isfinite(found):
        raise UserError(f"{place}: {column} = {given!r:.40} should be a number: how alike the two texts are")
    return found


def evaluate_task(models: list[Any], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of an embedding model."""
    request.allow("an embedding model", "source", "text_pair", "target", "columns", "truncate")
    names = (request.get("source"), request.get("text_pair"), request.get("target"))
    chosen = select(request.file, request.columns, names)
    return Evaluation(evaluate(models[0], chosen, request.batch_size, request.get("truncate", False), request.quiet))


def evaluate(
    model: Any, chosen: Selection, batch_size: int = 32, truncate: bool = False, quiet: bool = True
) -> dict[str, Any]:
    """How far the cosines of pairs rise and fall with their numbers."""
    texts = list(dict.fromkeys(text for pair in chosen.pairs for text in (pair.one, pair.other)))
    predictor = model.predictor("embed")
    rows = predictor.encode_inputs(texts, truncate)
    with counted("embedding", len(texts), quiet) as progress:
        vectors = predictor.embed(rows, batch_size, normalise=True, progress=progress)
    numbers = {text: number for number, text in enumerate(texts)}
    ones = vectors[[numbers[pair.one] for pair in chosen.pairs]]
    others = vectors[[numbers[pair.other] for pair in chosen.pairs]]
    cosines = np.einsum("nd,nd->n", ones, others)
    counts: dict[str, Any] = {"samples": len(chosen.pairs), "split": chosen.name}
    counts |= {"skipped": chosen.skipped} if chosen.skipped else {}
    return counts | {"scores": correlations(cosines, [pair.score for pair in chosen.pairs])}
