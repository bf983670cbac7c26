"""Logits processors: forbidden tokens, penalties and biases.

logits (rows, vocabulary); history (rows, length): all tokens so far, forced ones included, -1 where padded on the left.
An end token is never a repetition, even where a model begins with it.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions

LogitsProcessor = Callable[[Tensor, Tensor, int], Tensor]
"""Of logits, the history, and how many of its tokens belong to the answer: logits, -inf for what may not follow."""


def process_logits(
    logits: Tensor, history: Tensor, written: int, eos_ids: Sequence[int], options: DecodeOptions
) -> tuple[Tensor, Tensor]:
    """The logits of the allowed tokens, -inf for the others, and the log-sum-exp of all of them (rows,).

    The last `written` tokens of the history belong to the answer. Forbidden tokens keep their share of the
    probability, so that a log probability remains the model's.
    """
    if options.logit_bias:
        logits = add_bias(logits, options.logit_bias)
    if options.repetition_penalty != 1.0:
        logits = penalize_repetition(logits, history, eos_ids, options.repetition_penalty)
    if written and (options.presence_penalty or options.frequency_penalty):
        logits = penalize_presence(logits, history[:, -written:], options)
    normalizer = logits.logsumexp(-1)
    if options.suppress_tokens:
        logits = forbid(logits, options.suppress_tokens)
    if options.no_repeat_ngram_size:
        logits = forbid_repeated_ngrams(logits, history, eos_ids, options.no_repeat_ngram_size)
    if written < options.min_new_tokens and eos_ids:
        logits = forbid(logits, eos_ids)
    return logits, normalizer


def add_bias(logits: Tensor, bias: Mapping[str, float]) -> Tensor:
    """Add a constant to the logits of some tokens."""
    tokens = torch.tensor([int(token) for token in bias], device=logits.device)
    return logits.index_add(1, tokens, logits.new_tensor(list(bias.values())).expand(len(logits), -1))


def penalize_repetition(logits: Tensor, history: Tensor, eos_ids: Sequence[int], penalty: float) -> Tensor:
    """Tokens of the history become less likely: Keskar et al. 2019, section 4.1, also for negative logits."""
    history = torch.where(history < 0, history[:, -1:], history)  # padding repeats the last token
    repeated = logits.gather(1, history)
    penalized = torch.where(repeated < 0, repeated * penalty, repeated / penalty)
    return _restore(logits.scatter(1, history, penalized), logits, eos_ids)


def penalize_presence(logits: Tensor, written: Tensor, options: DecodeOptions) -> Tensor:
    """Tokens of the answer become less likely, once for their presence and once for each occurrence."""
    counts = torch.zeros_like(logits).scatter_add_(1, written, torch.ones_like(written, dtype=logits.dtype))
    return logits - options.presence_penalty * (counts > 0) - options.frequency_penalty * counts


def forbid_repeated_ngrams(logits: Tensor, history: Tensor, eos_ids: Sequence[int], size: int) -> Tensor:
    """No token may complete an n-gram of this size that occurred before."""
    if history.size(1) < size:
        return logits
    ngrams = history.unfold(1, size, 1)  # (rows, positions, size)
    recent = history[:, None, history.size(1) - size + 1 :]
    repeated = (ngrams[..., :-1] == recent).all(-1) & (ngrams[..., -1] >= 0)
    row, position = repeated.nonzero(as_tuple=True)
    allowed = logits.index_put((row, ngrams[row, position, -1]), logits.new_tensor(-torch.inf))
    return _restore(allowed, logits, eos_ids)


def forbid(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """These tokens may not follow."""
    return logits.index_fill(1, torch.tensor(tokens, device=logits.device), -torch.inf)


def _restore(changed: Tensor, logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """The changed logits, except for those of `tokens`."""
    for token in tokens:
        changed[:, token] = logits[:, token]
    return changed
