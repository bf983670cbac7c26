"""`regard evaluate` of captioning models: BLEU, chrF, CIDEr and exact match; of `shapes` also pointing accuracy."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.metrics import captions as metrics
from regard.metrics.bootstrap import Score, bootstrap_mean
from regard.progress import counted
from regard.tasks.caption.dataset import CaptionRecord, records
from regard.tasks.caption.pointing import pointing, scene_of
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import Evaluation, EvaluationRequest, prediction_rows, require_same_task, resolve_split

OPTIONS = ("source", "target", "predictions", "compare")

MAX_POINTING = 500  # images whose attention is traced


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """Scores of one model, or of two with the paired tests of their differences."""
    description = "a captioning model"
    request.allow(description, *OPTIONS, *request.decode)
    require_same_task(models, description)
    columns = {"image": request.get("source") or None, "caption": request.get("target") or None}
    recipe, split = resolve_split(models[0].recipe, "caption", request.file, ", such as captions.csv", **columns)
    samples = [record for record in records(recipe, split) if record.image and record.captions]
    if not samples:
        raise UserError(f"{getattr(recipe.data, split)}: no images with captions to score")
    names = [record.image for record in samples]
    references = [list(record.captions) for record in samples]
    options = {**request.decode, "batch_size": request.batch_size}
    with counted("captioning", len(names) * len(models), request.quiet) as progress:
        outputs = [[each.text for each in model.run(names, **options, progress=progress)] for model in models]
    results: dict[str, Any] = {"images": len(names), "split": request.file or split}
    if len(models) == 1:
        results["scores"] = metrics.score(outputs[0], references)
        results |= _pointing(models[0], samples)
    else:
        results["scores"] = [
            {"model": name, **asdict(score)}
            for name, texts in zip(("first", "second"), outputs, strict=True)
            for score in metrics.score(texts, references)
        ]
        results["comparison"] = [each.to_dict() for each in metrics.compare(outputs[0], outputs[1], references)]
    locations = [record.location for record in samples]
    return Evaluation(results, prediction_rows(locations, names, references, outputs))


def _pointing(model: LoadedModel, samples: Sequence[CaptionRecord]) -> dict[str, Any]:
    """Pointing accuracy of synthetic images by cross-attention site, in percent, with its chance level."""
    scenes = filter(None, (scene_of(record.image) for record in samples[:MAX_POINTING]))
    traced = (pointing(model.network, model.processor, drawn) for drawn in scenes)
    measured = [each for each in traced if each is not None]
    if not measured:
        return {}
    sites: list[Score] = [
        bootstrap_mean(site, 100 * np.array([each.hits[site] for each in measured])) for site in measured[0].hits
    ]
    random_rate = 100 * float(np.mean([each.random_rate for each in measured]))
    return {"pointing": sites, "pointing_chance": random_rate, "pointing_images": len(measured)}
