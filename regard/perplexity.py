"""`regard evaluate` of a language model on running text: how well it foresees each token, in sliding windows."""

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bar

from regard.errors import UserError
from regard.inputs.packing import windows
from regard.inputs.stream import Stream
from regard.inputs.text import Tokenizer
from regard.recipe import DataOptions, Recipe
from regard.tasks.generate import corpus
from regard.tasks.likelihood import of_windows
from regard.tasks.parallel import cache_folder
from regard.tasks.scores import RESAMPLES, SEED, Score


def select(recipe: Recipe | None, file: str | None, column: str, tokenizer: Tokenizer) -> tuple[str, Stream]:
    """The file as tokens; without one the test part of the model's recipe, else its validation part."""
    if file:
        data = replace(recipe.data if recipe else DataOptions(), train="", validation="", test=file, generate="")
        data = replace(data, text=column or data.text)
        recipe = Recipe(task="generate", output="", data=data, origin=str(Path.cwd()))
    if recipe is None:
        raise UserError("this model came without a recipe that names a test part: give a FILE of text")
    part = next((part for part in ("test", "validation") if getattr(recipe.data, part)), None)
    if part is None:
        raise UserError("the model's recipe names neither data.test nor data.validation: give a FILE of text")
    stream = corpus(recipe, part, tokenizer, cache_folder())
    if stream is None or len(stream) < 2:
        raise UserError(f"{file or part}: of less than two tokens there is nothing to foresee")
    return file or part, stream


def evaluate(
    model: Any, chosen: tuple[str, Stream], stride: int = 0, batch_size: int = 32, quiet: bool = True
) -> dict[str, Any]:
    """Loss, perplexity and bits per byte of a text; each token counts once, behind as many as a window's overlap."""
    name, stream = chosen
    length = (model.recipe.data.max_length if model.recipe else 0) or model.network.limit
    stride = stride or max(1, length // 2)
    if stride > length:
        raise UserError(f"--stride {stride}: at most the {length} tokens that the model sees at once")
    spans = list(windows(stream, length + 1, stride))
    with Bar(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("reading", total=len(spans))
        found = of_windows(
            model.network,
            lambda begin, end: stream.tokens[begin:end],
            iter(spans),
            batch_size,
            lambda done: bar.advance(task, done),
        )
        counted = list(found)
    signature = f"tokens:{named(model.vocabulary.target)}|context:{length}|stride:{stride}|bs:{RESAMPLES}|seed:{SEED}"
    facts = {"part": name, "tokens": len(stream), "bytes": stream.bytes, "windows": len(spans)}
    return facts | {"scores": scores(counted, stream.bytes, signature)}


def scores(counted: Sequence[tuple[float, int]], size: int, signature: str) -> list[Score]:
    """The figures of a text of `size` bytes from the sum and count of each window, which the bootstrap draws anew."""
    totals, counts = np.array(counted, float).T
    chance = np.random.default_rng(SEED)
    drawn = (chance.integers(len(totals), size=len(totals)) for _ in range(RESAMPLES))
    losses = np.array([-totals[rows].sum() / counts[rows].sum() for rows in drawn])
    loss, bits = -totals.sum() / counts.sum(), counts.sum() / size / math.log(2)
    return [
        score_of("loss", loss, losses, signature),
        score_of("perplexity", np.exp(loss), np.exp(losses), signature),
        score_of("bits_per_byte", bits * loss, bits * losses, signature),
    ]


def score_of(name: str, value: float, resamples: np.ndarray, signature: str) -> Score:
    low, high = np.percentile(resamples, [2.5, 97.5])
    return Score(name, float(value), float(high - low) / 2, signature)


def named(tokenizer: Tokenizer) -> str:
    """A tokenizer by its kind, its size and its content: perplexities are comparable only where these are the same."""
    digest = hashlib.sha256(tokenizer.content().encode()).hexdigest()
    return f"{type(tokenizer.inner.model).__name__}.{tokenizer.size}.{digest[:8]}"
