"""What a hypothesis may not say next, and what it should rather not.

logits (rows, vocabulary); history (rows, length): all tokens so far, forced ones included. The end token is never a
repetition, even where a model begins with it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.recipe import DecodeOptions


def restrict(logits: Tensor, history: Tensor, step: int, end: int, options: DecodeOptions) -> tuple[Tensor, Tensor]:
    """The logits of what may follow, -inf for the rest, and the logarithm of the sum of all exponentials (rows,).

    What is forbidden keeps its share of the probability, so that a log probability stays the network's own.
    """
    if options.repetition_penalty != 1.0:
        logits = penalise_repetition(logits, history, end, options.repetition_penalty)
    normaliser = logits.logsumexp(-1)
    if options.suppress_tokens:
        logits = forbid(logits, options.suppress_tokens)
    if options.no_repeat_ngram_size:
        logits = forbid_repetition(logits, history, end, options.no_repeat_ngram_size)
    if step <= options.min_new_tokens:
        logits = forbid(logits, (end,))
    return logits, normaliser


def penalise_repetition(logits: Tensor, history: Tensor, end: int, penalty: float) -> Tensor:
    """Tokens already said become less likely: Keskar et al. 2019, section 4.1, made safe for negative logits."""
    said = logits.gather(1, history)
    softened = logits.scatter(1, history, torch.where(said < 0, said * penalty, said / penalty))
    softened[:, end] = logits[:, end]
    return softened


def forbid_repetition(logits: Tensor, history: Tensor, end: int, size: int) -> Tensor:
    """No token may complete an n-gram of this size that was said before."""
    if history.size(1) < size:
        return logits
    grams = history.unfold(1, size, 1)  # (rows, places, size)
    recent = history[:, None, history.size(1) - size + 1 :]
    again = (grams[..., :-1] == recent).all(-1)
    completions = grams[..., -1].where(again, end)  # where nothing repeats, the end stands in: it is restored below
    allowed = logits.scatter(1, completions, -torch.inf)
    allowed[:, end] = logits[:, end]
    return allowed


def forbid(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """These tokens may not follow."""
    return logits.index_fill(1, torch.tensor(tokens, device=logits.device), -torch.inf)
