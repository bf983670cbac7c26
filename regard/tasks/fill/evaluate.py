"""Loss and accuracy of masked tokens, for validation and for `regard evaluate`: the same masks and pairs each time."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from regard.data.cache import cache_folder
from regard.data.documents import in_rows
from regard.data.token_stream import TokenStream
from regard.metrics.bootstrap import SIGNATURE, bootstrap
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.progress import Progress, counted
from regard.tasks.distillation import Predicted
from regard.tasks.fill.batches import MaskedBatch, MaskOptions, masked_rows, pair_budget, rows_per_epoch
from regard.tasks.fill.options import FillData
from regard.tasks.fill.sentences import SentenceDataset, prepare_sentences, prepare_stream
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import Evaluation, EvaluationRequest, resolve_split
from regard.text.special_tokens import special_tokens_of
from regard.text.tokenizer import Tokenizer

ROWS = 32  # of a batch
SEED = 1  # of the masks


def prepare_split(
    data: FillData, split: str, tokenizer: Tokenizer, cache: Path, length: int, base_dir: Path
) -> TokenStream | SentenceDataset:
    """A split as a token stream, or as sentences where pairs are drawn."""
    if data.pair_task == "none":
        return prepare_stream(data, split, tokenizer, cache, base_dir)
    return prepare_sentences(data, split, tokenizer, cache, pair_budget(tokenizer, length), base_dir)


def fixed_rows(
    split: TokenStream | SentenceDataset, tokenizer: Tokenizer, options: MaskOptions, limit: int
) -> Iterator[MaskedBatch]:
    """At most `limit` rows of a split, always with the same masks."""
    count = min(limit, rows_per_epoch(split, tokenizer, options))
    batches = masked_rows(split, tokenizer, replace(options, batch_size=ROWS, seed=SEED))
    for done in range(0, count, ROWS):
        yield next(batches).rows(slice(count - done))


# ── scores of rows ────────────────────────────────────────────────────────────────────────────────────────────────────


def predict(network: MaskedLM, batch: MaskedBatch) -> Predicted:
    """Logits of the masked tokens, and with labels also of the pairs. No others are computed."""
    states = network.encode(batch.text)
    logits = network.lm_head(states[batch.at]).float()
    if batch.labels is None or not isinstance(network, Pretraining):
        return Predicted(states, (logits,), batch.text.real)
    pairs = network.nsp_logits(states, batch.text).float()
    return Predicted(states, (logits, pairs), batch.text.real)


class RowScores(NamedTuple):
    """For each row, the summed loss of its masked tokens, their count and the correct ones; and the original tokens."""

    losses: np.ndarray
    counts: np.ndarray
    hits: np.ndarray
    pair_hits: np.ndarray | None  # 1.0 where the label of the pair is predicted correctly
    targets: np.ndarray

    @property
    def unigram_entropy(self) -> float:
        """The entropy of the masked tokens: a lower bound of the loss without any context."""
        _, counts = np.unique(self.targets, return_counts=True)
        shares = counts / counts.sum()
        return -float((shares * np.log(shares)).sum())

    def metrics(self, pair_task: str, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """Of all rows, or of some. The accuracy of the pair task is `nsp_accuracy` or `sop_accuracy`."""
        count = self.counts[rows].sum()
        loss = float(self.losses[rows].sum() / count)
        accuracy = 100 * float(self.hits[rows].sum() / count)
        metrics = {"loss": loss, "perplexity": math.exp(min(700.0, loss)), "accuracy": accuracy}
        if self.pair_hits is not None:
            metrics[f"{pair_task}_accuracy"] = 100 * float(self.pair_hits[rows].mean())
        return metrics


@torch.no_grad()
def score_batches(
    network: MaskedLM, batches: Iterable[MaskedBatch], progress: Progress = lambda done: None
) -> RowScores:
    """The scores of all rows of these batches."""
    device = next(network.parameters()).device
    columns = []
    targets = []
    for batch in batches:
        batch = batch.to(device)
        logits, *pair_logits = predict(network, batch).logits
        rows = batch.at.nonzero()[:, 0].cpu().numpy()
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        per_token = (losses, torch.ones_like(losses), logits.argmax(1) == batch.targets)
        sums = [np.bincount(rows, values.double().cpu().numpy(), len(batch.at)) for values in per_token]
        pair_hits = [(scores.argmax(1) == batch.labels).double().cpu().numpy() for scores in pair_logits]
        columns.append([*sums, *pair_hits])
        targets.append(batch.targets.cpu().numpy())
        progress(len(batch.at))
    losses, counts, hits, *pair_hits = (np.concatenate(column) for column in zip(*columns, strict=True))
    return RowScores(losses, counts, hits, pair_hits[0] if pair_hits else None, np.concatenate(targets))


# ── `regard evaluate` ─────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate_task(models: Sequence[LoadedModel], request: EvaluationRequest) -> Evaluation:
    """Loss, perplexity and accuracy of masked tokens, and accuracy of the pair task, with intervals."""
    request.allow("a masked language model", "source")
    model = models[0]
    network: MaskedLM = model.network
    tokenizer = model.processor.target
    options: dict[str, Any] = {}
    if model.recipe is None:  # of published networks, ALBERT, whose layers share weights, has sentence order prediction
        pair_task = "sop" if getattr(network.config, "hidden_groups", 0) else "nsp"
        options = {"pair_task": pair_task if isinstance(network, Pretraining) else "none", "max_length": 0}
    file = request.file
    column = request.get("source")
    if file and (column or not in_rows(Path(file))):  # the recipe's columns are not those of this file
        options |= {"text": column, "split_by": "source"}
    recipe, split = resolve_split(model.recipe, "fill", file, " of text", **options)
    data = FillData.of(recipe)
    length = min(data.max_length or network.max_positions, network.max_positions)
    text = prepare_split(data, split, tokenizer, cache_folder(), length, Path(recipe.origin))
    if isinstance(text, TokenStream):  # a short text is one row
        length = min(length, len(text) + special_tokens_of(tokenizer, 1).size)
    masking = MaskOptions(length, 1, SEED, data.pair_task, data.mask_probability, data.whole_word_mask)
    count = rows_per_epoch(text, tokenizer, masking)
    with counted("reading", count, request.quiet) as progress:
        scored = score_batches(network, fixed_rows(text, tokenizer, masking, count), progress)
    unit = "words" if data.whole_word_mask else "tokens"
    signature = (
        f"tokens:{tokenizer.signature}|length:{length}|pair_task:{data.pair_task}"
        f"|masked:{data.mask_probability:g} of {unit}|seed:{SEED}|{SIGNATURE}"
    )
    results = {
        "split": file or split,
        "rows": count,
        "masked_tokens": len(scored.targets),
        "unigram_entropy": scored.unigram_entropy,
        "scores": bootstrap(lambda rows: scored.metrics(data.pair_task, rows), count, signature),
    }
    return Evaluation(results)
