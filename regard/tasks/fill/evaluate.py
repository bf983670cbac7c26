"""`regard evaluate` of a model that finds hidden words: the same words of a text hidden each time, and pairs drawn."""

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
from regard.tasks.fill.guesses import Guesses, guess
from regard.tasks.fill.options import FillData
from regard.tasks.fill.sentences import SentenceDataset
from regard.tasks.scoring import Evaluation, EvaluationRequest, resolve_split
from regard.text.special_tokens import special_tokens_of


class Selection(NamedTuple):
    """A text whose words will be hidden, where it comes from, and how they are."""

    name: str
    text: TokenStream | SentenceDataset
    options: MaskOptions


def select(model: Any, file: str | None, column: str) -> Selection:
    """The file; without one the test part of the model's recipe, else its validation part."""
    how: dict[str, Any] = {} if model.recipe else {"pair_task": _pairs(model.network), "max_length": 0}
    if file and (column or not in_rows(Path(file))):  # another's columns
        how |= {"text": column, "split_by": "source"}
    recipe, part = resolve_split(model.recipe, "fill", file, " of text", **how)
    data, tokenizer = FillData.of(recipe), model.vocabulary.target
    length = min(data.max_length or model.network.max_positions, model.network.max_positions)
    text = prepare_split(data, part, tokenizer, cache_folder(), length, Path(recipe.origin))
    if isinstance(text, TokenStream):  # a short text is one row
        length = min(length, len(text) + special_tokens_of(tokenizer, 1).size)
    options = MaskOptions(length, 1, SEED, data.pair_task, data.mask_probability, data.whole_word_mask)
    return Selection(file or part, text, options)


def _pairs(network: Any) -> Any:
    """What a published network's second text is to the first: ALBERT's blocks share weights, and it learnt orders."""
    if not isinstance(network, Pretraining):
        return "none"
    return "sop" if getattr(network.config, "hidden_groups", 0) else "nsp"


def evaluate_task(models: list[Any], request: EvaluationRequest) -> Evaluation:
    """`regard evaluate` of a masked language model."""
    request.allow("a masked language model", "source")
    chosen = select(models[0], request.file, request.get("source"))
    return Evaluation(evaluate(models[0], chosen, request.quiet))


def evaluate(model: Any, chosen: Selection, quiet: bool = True) -> dict[str, Any]:
    """Loss, perplexity and accuracy of hidden words, of pairs how many are told right; each with its interval."""
    tokenizer, options = model.vocabulary.target, chosen.options
    count = rows_per_epoch(chosen.text, tokenizer, options)
    with counted("reading", count, quiet) as progress:
        found = guess(model.network, fixed_rows(chosen.text, tokenizer, options, count), progress)
    words = "whole" if options.whole_word_mask else "pieces"
    signature = (
        f"tokens:{tokenizer.signature}|length:{options.length}|pair_task:{options.pair_task}"
        f"|masked:{options.share:g} {words}"
        f"|drawn:{options.seed}|{SIGNATURE}"
    )
    facts = {"split": chosen.name, "rows": count, "hidden_words": len(found.words), "unigram_entropy": found.unigram}
    return facts | {"scores": scores(found, signature)}


def scores(found: Guesses, signature: str) -> list[Score]:
    """The metrics with intervals over resampled rows."""

    def statistic(rows: np.ndarray) -> dict[str, float]:
        count = found.counts[rows].sum()
        loss = found.losses[rows].sum() / count
        metrics = {"loss": loss, "perplexity": np.exp(loss), "accuracy": 100 * (found.hits[rows].sum() / count)}
        return metrics | ({} if found.relations is None else {"pairs": 100 * found.relations[rows].mean()})

    return bootstrap(statistic, len(found.counts), signature)
