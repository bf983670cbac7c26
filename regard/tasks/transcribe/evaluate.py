"""`regard evaluate` of speech recognition models: word, character or phoneme error rates."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from regard.errors import UserError
from regard.metrics import error_rate
from regard.progress import counted
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import Evaluation, EvaluationRequest, prediction_rows, require_same_task, resolve_split
from regard.tasks.transcribe.dataset import records, timed_references
from regard.tasks.transcribe.options import TranscribeData
from regard.tasks.transcribe.scores import attention_scores, boundary_scores

OPTIONS = ("source", "target", "truncate", "predictions", "compare")


def metrics_of(data: TranscribeData) -> tuple[str, ...]:
    """The error rates of transcripts in these units."""
    return (error_rate.PHONEMES,) if data.units == "phonemes" else error_rate.TEXT_METRICS


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """Error rates of one model, or of two with the paired tests of their differences."""
    description = "a speech recognition model"
    request.allow(description, *OPTIONS, *request.decode)
    require_same_task(models, description)
    columns = {"audio": request.get("source") or None, "text": request.get("target") or None}
    recipe, split = resolve_split(models[0].recipe, "transcribe", request.file, ", such as test.tsv", **columns)
    samples = [record for record in records(recipe, split) if record.source and record.target.strip()]
    if not samples:
        raise UserError(f"{getattr(recipe.data, split)}: no recordings with transcripts to score")
    names = [record.source for record in samples]
    references = [record.target for record in samples]
    options = {**request.decode, "batch_size": request.batch_size, "truncate": request.get("truncate", False)}
    with counted("transcribing", len(names) * len(models), request.quiet) as progress:
        outputs = [[each.text for each in model.run(names, **options, progress=progress)] for model in models]
    metrics = metrics_of(TranscribeData.of(recipe))
    results: dict[str, Any] = {"recordings": len(names), "split": request.file or split}
    if len(models) == 1:
        results["scores"] = [error_rate.score(name, outputs[0], references) for name in metrics]
        results["edits"] = {name: error_rate.edits(name, outputs[0], references).to_dict() for name in metrics}
        predictor = models[0].predictor()
        results |= {"attention": scores} if (scores := attention_scores(predictor, names, outputs[0])) else {}
        timed = {name: units for name, units in timed_references(recipe, split).items() if name in {*names}}
        results |= {"boundaries": scores} if (scores := boundary_scores(predictor, timed)) else {}
    else:
        results["scores"] = [
            {"model": model, **asdict(error_rate.score(name, texts, references))}
            for model, texts in zip(("first", "second"), outputs, strict=True)
            for name in metrics
        ]
        differences = [error_rate.compare(name, outputs[0], outputs[1], references) for name in metrics]
        results["comparison"] = [each.to_dict(higher_is_better=False) for each in differences]
    locations = [record.location for record in samples]
    return Evaluation(results, prediction_rows(locations, names, references, outputs))
