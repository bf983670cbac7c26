"""`regard evaluate` of embedding models: semantic textual similarity. Cer et al. 2017 (STS benchmark).

Pearson's and Spearman's correlation of the cosines of pairs of texts with their similarity ratings.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.data.files import find, rows
from regard.errors import UserError
from regard.metrics.bootstrap import Score
from regard.metrics.correlation import correlations
from regard.progress import counted
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import Evaluation, EvaluationRequest

COLUMNS = (("text", "text_pair", "label"), ("text", "text2", "label"), ("sentence1", "sentence2", "score"))  # defaults


class Pair(NamedTuple):
    """Two texts and their similarity rating."""

    one: str
    other: str
    score: float


def read_pairs(file: str | None, columns: tuple[str, ...], named: tuple[str, str, str]) -> tuple[list[Pair], int]:
    """The file's pairs, and how many rows were skipped because a field is empty.

    `columns` are those of a file without a header, `named` replaces default column names.
    """
    if not file:
        raise UserError("embeddings are scored on a FILE of pairs: columns text, text_pair and label (a number)")
    path = find(file)
    first = next(rows(path, columns)).fields
    known = {*columns} or {*first, *first.values()}  # the first line of a table without `columns` may be its header
    defaults = max(COLUMNS, key=lambda names: len(known & {*names}))
    one, other, label = (name or default for name, default in zip(named, defaults, strict=True))
    pairs = []
    skipped = 0
    required = {"--source": one, "--text-pair": other, "--target": label}
    for fields, location in rows(path, columns, required, {label: (int, float)}):
        if not all(fields[name].strip() for name in (one, other, label)):
            skipped += 1
            continue
        try:
            rating = float(fields[label])
        except ValueError:
            rating = np.nan
        if not np.isfinite(rating):
            raise UserError(
                f"{location}: {label} = {fields[label]!r:.40} should be a number: the similarity of the two texts"
            )
        pairs.append(Pair(fields[one], fields[other], rating))
    if len(pairs) < 2:
        raise UserError(f"{path}: {len(pairs)} pairs; a correlation needs at least two")
    return pairs, skipped


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of an embedding model."""
    request.allow("an embedding model", "source", "text_pair", "target", "columns", "truncate")
    names = (request.get("source"), request.get("text_pair"), request.get("target"))
    pairs, skipped = read_pairs(request.file, request.columns, names)
    results: dict[str, Any] = {"samples": len(pairs), "split": request.file}
    results |= {"skipped": skipped} if skipped else {}
    results["scores"] = evaluate(models[0], pairs, request.batch_size, request.get("truncate", False), request.quiet)
    return Evaluation(results)


def evaluate(
    model: LoadedModel, pairs: Sequence[Pair], batch_size: int = 32, truncate: bool = False, quiet: bool = True
) -> list[Score]:
    """The correlation of the cosines of pairs with their ratings."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.one, pair.other)))
    predictor = model.predictor("embed")
    rows = predictor.encode_inputs(texts, truncate)
    with counted("embedding", len(texts), quiet) as progress:
        vectors = dict(zip(texts, predictor.embed(rows, batch_size, normalise=True, progress=progress), strict=True))
    cosines = np.array([vectors[pair.one] @ vectors[pair.other] for pair in pairs])
    return correlations(cosines, [pair.score for pair in pairs])
