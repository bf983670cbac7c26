"""Perplexity of a causal language model on text, in sliding windows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.config.recipe import Recipe
from regard.data.cache import cache_folder
from regard.data.packing import windows
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.metrics.bootstrap import SIGNATURE, Score, bootstrap
from regard.progress import counted
from regard.tasks.generate import few_shot
from regard.tasks.generate.dataset import prepare_split
from regard.tasks.generate.likelihood import metrics, window_log_probabilities
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import Evaluation, EvaluationRequest, resolve_split
from regard.text.tokenizer import Tokenizer


def select(recipe: Recipe | None, file: str | None, column: str, tokenizer: Tokenizer) -> tuple[str, TokenStream]:
    """The file as tokens; without one the test split of the model's recipe, else its validation split."""
    recipe, split = resolve_split(recipe, "generate", file, " of text", text=column or None)
    stream = prepare_split(recipe, split, tokenizer, cache_folder())
    if stream is None or len(stream) < 2:
        raise UserError(f"{file or split}: fewer than two tokens, so there is nothing to predict: give more text")
    return file or split, stream


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of a causal language model: perplexity of text, or with `--shots` few-shot accuracy."""
    model = models[0]
    if not request.get("shots"):
        request.allow("text by a causal language model (few-shot evaluation: --shots)", "source", "target", "stride")
        chosen = select(model.recipe, request.file, request.get("source"), model.processor.target)
        return Evaluation(evaluate(model, chosen, request.get("stride", 0), request.batch_size, request.quiet))
    request.allow("few-shot prompts", "source", "target", "plot", *few_shot.OPTIONS)
    specified = {name: request.options[name] for name in few_shot.OPTIONS if name in request.options}
    options = few_shot.FewShotOptions(**specified)
    benchmark = few_shot.benchmark_of(model.recipe, request.file, options, request.get("source"), request.get("target"))
    shots = few_shot.parse_shots(options.shots)
    results = few_shot.evaluate(model, benchmark, shots, request.batch_size, request.quiet)
    name = Path(request.names[0]).name if request.names else "model"
    return Evaluation(results, chart=few_shot.curve(name, results))


def evaluate(
    model: LoadedModel, chosen: tuple[str, TokenStream], stride: int = 0, batch_size: int = 32, quiet: bool = True
) -> dict[str, Any]:
    """Loss, perplexity and bits per byte of a text; each token counts once, with the overlap of windows as context."""
    name, stream = chosen
    length = (model.recipe.data.max_length if model.recipe else 0) or model.network.max_positions
    stride = stride or max(1, length // 2)
    if stride > length:
        raise UserError(f"--stride {stride}: must be at most {length}, the tokens of the model's context")
    spans = list(windows(stream, length + 1, stride))
    with counted("reading", len(spans), quiet) as progress:
        sums = list(window_log_probabilities(model.network, stream.tokens, iter(spans), batch_size, progress))
    signature = f"tokens:{model.processor.target.signature}|context:{length}|stride:{stride}|{SIGNATURE}"
    facts = {"split": name, "tokens": len(stream), "bytes": stream.bytes, "windows": len(spans)}
    return facts | {"scores": scores(sums, stream.bytes, signature)}


def scores(counted: Sequence[tuple[float, int]], size: int, signature: str) -> list[Score]:
    """Metrics of a text of `size` bytes from the sum and count of each window; the bootstrap resamples windows."""
    totals, counts = np.array(counted, float).T
    bytes_per_token = size / counts.sum()
    return bootstrap(
        lambda rows: metrics(totals[rows].sum(), counts[rows].sum(), bytes_per_token), len(totals), signature
    )
