"""`regard evaluate` of a language model on running text: how well it foresees each token, in sliding windows."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.config.recipe import Recipe
from regard.data.cache import cache_folder
from regard.data.packing import windows
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.metrics.bootstrap import SIGNATURE, Score, bootstrap
from regard.progress import counted
from regard.tasks.generate.likelihood import of_windows
from regard.tasks.generate.task import corpus
from regard.tasks.scoring import chosen as part_of
from regard.tasks.scoring import columns
from regard.text.vocabulary import Tokenizer


def select(recipe: Recipe | None, file: str | None, column: str, tokenizer: Tokenizer) -> tuple[str, TokenStream]:
    """The file as tokens; without one the test part of the model's recipe, else its validation part."""
    recipe, part = part_of(recipe, "generate", file, " of text", **columns(recipe, text=column))
    stream = corpus(recipe, part, tokenizer, cache_folder())
    if stream is None or len(stream) < 2:
        raise UserError(f"{file or part}: of less than two tokens there is nothing to foresee")
    return file or part, stream


def evaluate(
    model: Any, chosen: tuple[str, TokenStream], stride: int = 0, batch_size: int = 32, quiet: bool = True
) -> dict[str, Any]:
    """Loss, perplexity and bits per byte of a text; each token counts once, behind as many as a window's overlap."""
    name, stream = chosen
    length = (model.recipe.data.max_length if model.recipe else 0) or model.network.max_positions
    stride = stride or max(1, length // 2)
    if stride > length:
        raise UserError(f"--stride {stride}: at most the {length} tokens that the model sees at once")
    spans = list(windows(stream, length + 1, stride))
    with counted("reading", len(spans), quiet) as progress:
        sums = list(
            of_windows(model.network, lambda *place: stream.tokens[slice(*place)], iter(spans), batch_size, progress)
        )
    signature = f"tokens:{named(model.vocabulary.target)}|context:{length}|stride:{stride}|{SIGNATURE}"
    facts = {"part": name, "tokens": len(stream), "bytes": stream.bytes, "windows": len(spans)}
    return facts | {"scores": scores(sums, stream.bytes, signature)}


def scores(counted: Sequence[tuple[float, int]], size: int, signature: str) -> list[Score]:
    """The figures of a text of `size` bytes from the sum and count of each window, which the bootstrap draws anew."""
    totals, counts = np.array(counted, float).T
    bits = counts.sum() / size / math.log(2)

    def statistic(rows: np.ndarray) -> dict[str, float]:
        loss = -totals[rows].sum() / counts[rows].sum()
        return {"loss": loss, "perplexity": np.exp(loss), "bits_per_byte": bits * loss}

    return bootstrap(statistic, len(totals), signature)


def named(tokenizer: Tokenizer) -> str:
    """A tokenizer by its kind, its size and its content: perplexities are comparable only where these are the same."""
    digest = hashlib.sha256(tokenizer.content().encode()).hexdigest()
    return f"{type(tokenizer.inner.model).__name__}.{tokenizer.size}.{digest[:8]}"
