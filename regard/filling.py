"""`regard evaluate` of a model that finds hidden words: the same words of a text hidden each time, and pairs drawn."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bar

from regard.errors import UserError
from regard.inputs.frames import frame_of
from regard.inputs.pretraining import MaskOptions, rows_per_epoch
from regard.inputs.running import in_rows
from regard.inputs.sentences import Sentences
from regard.inputs.stream import Stream
from regard.models.heads import Pretraining
from regard.perplexity import named, score_of
from regard.recipe import DataOptions, Recipe
from regard.tasks.fill import SEED as DRAWN
from regard.tasks.fill import hidden_in, some_rows
from regard.tasks.masked import Guesses, guess
from regard.tasks.parallel import cache_folder
from regard.tasks.scores import RESAMPLES, SEED, Score


class Selection(NamedTuple):
    """A text whose words will be hidden, where it comes from, and how they are."""

    name: str
    text: Stream | Sentences
    options: MaskOptions


def select(model: Any, file: str | None, column: str) -> Selection:
    """The file; without one the test part of the model's recipe, else its validation part."""
    recipe: Recipe | None = model.recipe
    if file:
        data = recipe.data if recipe else DataOptions(pairs=_pairs(model.network), max_length=0)
        data = replace(data, train="", validation="", test=file, generate="")
        if column or not in_rows(Path(file)):  # another's columns
            data = replace(data, text=column, split_by="source")
        recipe = Recipe(task="fill", output="", data=data, origin=str(Path.cwd()))
    if recipe is None:
        raise UserError("this model came without a recipe that names a test part: give a FILE of text")
    part = next((part for part in ("test", "validation") if getattr(recipe.data, part)), None)
    if part is None:
        raise UserError("the model's recipe names neither data.test nor data.validation: give a FILE of text")
    data, tokenizer = recipe.data, model.vocabulary.target
    length = min(data.max_length or model.network.limit, model.network.limit)
    text = hidden_in(data, part, tokenizer, cache_folder(), length, Path(recipe.origin))
    if isinstance(text, Stream):  # a short text is one row
        length = min(length, len(text) + frame_of(tokenizer, 1).size)
    options = MaskOptions(length, 1, DRAWN, data.pairs, data.masked, data.whole_words)
    return Selection(file or part, text, options)


def _pairs(network: Any) -> Any:
    """What a published network's second text is to the first: ALBERT's blocks share weights, and it learnt orders."""
    if not isinstance(network, Pretraining):
        return "none"
    return "order" if getattr(network.config, "groups", 0) else "next"


def evaluate(model: Any, chosen: Selection, quiet: bool = True) -> dict[str, Any]:
    """Loss, perplexity and accuracy of hidden words, of pairs how many are told right; each with its interval."""
    tokenizer, options = model.vocabulary.target, chosen.options
    count = rows_per_epoch(chosen.text, tokenizer, options)
    with Bar(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("reading", total=count)
        batches = some_rows(chosen.text, tokenizer, options, count)
        found = guess(model.network, batches, lambda done: bar.advance(task, done))
    words = "whole" if options.whole_words else "pieces"
    signature = (
        f"tokens:{named(tokenizer)}|length:{options.length}|pairs:{options.pairs}|hidden:{options.share:g} {words}"
        f"|drawn:{options.seed}|bs:{RESAMPLES}|seed:{SEED}"
    )
    facts = {"part": chosen.name, "rows": count, "hidden_words": len(found.words), "unigram_entropy": found.unigram}
    return facts | {"scores": scores(found, signature)}


def scores(found: Guesses, signature: str) -> list[Score]:
    """The figures, and those of rows that the bootstrap draws anew."""
    chance, rows = np.random.default_rng(SEED), len(found.counts)
    drawn = [chance.integers(rows, size=rows) for _ in range(RESAMPLES)]
    losses, hits = (
        np.array([each[some].sum() / found.counts[some].sum() for some in drawn]) for each in (found.losses, found.hits)
    )
    told = [
        score_of("loss", found.loss, losses, signature),
        score_of("perplexity", np.exp(found.loss), np.exp(losses), signature),
        score_of("accuracy", found.accuracy, 100 * hits, signature),
    ]
    if found.relations is not None:
        told.append(
            score_of(
                "pairs", found.related, np.array([100 * found.relations[some].mean() for some in drawn]), signature
            )
        )
    return told
