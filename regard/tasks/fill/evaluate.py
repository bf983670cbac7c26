"""`regard evaluate` of masked language models, with the same masks and pairs each time."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.cache import cache_folder
from regard.data.documents import in_rows
from regard.data.token_stream import TokenStream
from regard.metrics.bootstrap import SIGNATURE, Score, bootstrap
from regard.models.heads.mlm import Pretraining
from regard.progress import counted
from regard.tasks.fill.batches import MaskOptions, rows_per_epoch
from regard.tasks.fill.evaluation_rows import SEED, fixed_rows, prepare_split
from regard.tasks.fill.options import FillData
from regard.tasks.fill.scoring import RowScores, score_batches
from regard.tasks.fill.sentences import SentenceDataset
from regard.tasks.scoring import Evaluation, EvaluationRequest, resolve_split
from regard.text.special_tokens import special_tokens_of


class Selection(NamedTuple):
    """A text to mask, the name of its split or file, and the options of masking."""

    name: str
    text: TokenStream | SentenceDataset
    options: MaskOptions


def select(model: Any, file: str | None, column: str) -> Selection:
    """The file, else the test split of the model's recipe, else its validation split."""
    options: dict[str, Any] = {} if model.recipe else {"pair_task": _pair_task(model.network), "max_length": 0}
    if file and (column or not in_rows(Path(file))):  # the recipe's columns are not those of this file
        options |= {"text": column, "split_by": "source"}
    recipe, split = resolve_split(model.recipe, "fill", file, " of text", **options)
    data = FillData.of(recipe)
    tokenizer = model.vocabulary.target
    length = min(data.max_length or model.network.max_positions, model.network.max_positions)
    text = prepare_split(data, split, tokenizer, cache_folder(), length, Path(recipe.origin))
    if isinstance(text, TokenStream):  # a short text is one row
        length = min(length, len(text) + special_tokens_of(tokenizer, 1).size)
    masking = MaskOptions(length, 1, SEED, data.pair_task, data.mask_probability, data.whole_word_mask)
    return Selection(file or split, text, masking)


def _pair_task(network: Any) -> Any:
    """The pair task of a published network: ALBERT, whose layers share weights, has sentence order prediction."""
    if not isinstance(network, Pretraining):
        return "none"
    return "sop" if getattr(network.config, "hidden_groups", 0) else "nsp"


def evaluate_task(models: list[Any], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of a masked language model."""
    request.allow("a masked language model", "source")
    selection = select(models[0], request.file, request.get("source"))
    return Evaluation(evaluate(models[0], selection, request.quiet))


def evaluate(model: Any, selection: Selection, quiet: bool = True) -> dict[str, Any]:
    """Loss, perplexity and accuracy of masked tokens, and accuracy of the pair task, with intervals."""
    tokenizer = model.vocabulary.target
    options = selection.options
    count = rows_per_epoch(selection.text, tokenizer, options)
    with counted("reading", count, quiet) as progress:
        scored = score_batches(model.network, fixed_rows(selection.text, tokenizer, options, count), progress)
    words = "whole" if options.whole_word_mask else "pieces"
    signature = (
        f"tokens:{tokenizer.signature}|length:{options.length}|pair_task:{options.pair_task}"
        f"|masked:{options.share:g} {words}"
        f"|drawn:{options.seed}|{SIGNATURE}"
    )
    return {
        "split": selection.name,
        "rows": count,
        "hidden_words": len(scored.words),
        "unigram_entropy": scored.unigram,
        "scores": scores(scored, signature),
    }


def scores(scored: RowScores, signature: str) -> list[Score]:
    """The metrics with intervals over resampled rows."""

    def statistic(rows: np.ndarray) -> dict[str, float]:
        count = scored.counts[rows].sum()
        loss = scored.losses[rows].sum() / count
        metrics = {"loss": loss, "perplexity": np.exp(loss), "accuracy": 100 * (scored.hits[rows].sum() / count)}
        return metrics | ({} if scored.relations is None else {"pairs": 100 * scored.relations[rows].mean()})

    return bootstrap(statistic, len(scored.counts), signature)
