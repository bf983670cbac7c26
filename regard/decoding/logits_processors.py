"""What a hypothesis may not say next, and what it should rather not.

logits (rows, vocabulary); history (rows, length): all tokens so far, forced ones included, -1 where padded in front. An
end token is never a repetition, even where a model begins with it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions


def restrict(
    logits: Tensor, history: Tensor, written: int, ends: Sequence[int], options: DecodeOptions
) -> tuple[Tensor, Tensor]:
    """The logits of what may follow, -inf for the rest, and the logarithm of the sum of all exponentials (rows,).

    The last `written` tokens of the history are the answer's own. What is forbidden keeps its share of the
    probability, so that a log probability stays the network's own.
    """
    if options.logit_bias:
        logits = add(logits, options.logit_bias)
    if options.repetition_penalty != 1.0:
        logits = penalise_repetition(logits, history, ends, options.repetition_penalty)
    if written and (options.presence_penalty or options.frequency_penalty):
        logits = penalise_writing(logits, history[:, -written:], options)
    normaliser = logits.logsumexp(-1)
    if options.suppress_tokens:
        logits = forbid(logits, options.suppress_tokens)
    if options.no_repeat_ngram_size:
        logits = forbid_repetition(logits, history, ends, options.no_repeat_ngram_size)
    if written < options.min_new_tokens and ends:
        logits = forbid(logits, ends)
    return logits, normaliser


def add(logits: Tensor, bias: Mapping[str, float]) -> Tensor:
    """Some tokens are made likelier or less likely."""
    tokens = torch.tensor([int(token) for token in bias], device=logits.device)
    return logits.index_add(1, tokens, logits.new_tensor(list(bias.values())).expand(len(logits), -1))


def penalise_repetition(logits: Tensor, history: Tensor, ends: Sequence[int], penalty: float) -> Tensor:
    """Tokens already said become less likely: Keskar et al. 2019, section 4.1, made safe for negative logits."""
    history = torch.where(history < 0, history[:, -1:], history)  # padding says nothing that was not said
    said = logits.gather(1, history)
    softened = logits.scatter(1, history, torch.where(said < 0, said * penalty, said / penalty))
    return _spared(softened, logits, ends)


def penalise_writing(logits: Tensor, written: Tensor, options: DecodeOptions) -> Tensor:
    """Tokens of the answer become less likely, once for being there and once for each time they are."""
    counts = torch.zeros_like(logits).scatter_add_(1, written, torch.ones_like(written, dtype=logits.dtype))
    return logits - options.presence_penalty * (counts > 0) - options.frequency_penalty * counts


def _spared(changed: Tensor, logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """The changed logits, but for these tokens'."""
    for token in tokens:
        changed[:, token] = logits[:, token]
    return changed


def forbid_repetition(logits: Tensor, history: Tensor, ends: Sequence[int], size: int) -> Tensor:
    """No token may complete an n-gram of this size that was said before."""
    if history.size(1) < size:
        return logits
    grams = history.unfold(1, size, 1)  # (rows, places, size)
    recent = history[:, None, history.size(1) - size + 1 :]
    again = (grams[..., :-1] == recent).all(-1) & (grams[..., -1] >= 0)
    row, place = again.nonzero(as_tuple=True)
    allowed = logits.index_put((row, grams[row, place, -1]), logits.new_tensor(-torch.inf))
    return _spared(allowed, logits, ends)


def forbid(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """These tokens may not follow."""
    return logits.index_fill(1, torch.tensor(tokens, device=logits.device), -torch.inf)
