"""Which tokens continue the hypotheses of a search: greedy search, beam search and sampling.

Shapes: logits (batch, beams, vocabulary), all else (batch, beams or candidates).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.errors import UserError

BLOCK = 64  # logits whose maximum is computed together


class Candidates(NamedTuple):
    """Continuations: of which hypothesis of the source, with which token, and the total log probability."""

    parent: Tensor
    token: Tensor
    total: Tensor


# From logits, what to add to a logit for the total log probability (`base`), the sources' indices, and the step.
Choose = Callable[[Tensor, Tensor, Tensor, int], Candidates]


def strategy(options: DecodeOptions, keys: Sequence[int], limit: int, device: torch.device) -> tuple[Choose, int]:
    """How candidates are chosen, and how many hypotheses of a source are decoded in parallel."""
    if options.temperature == 0.0 and options.num_beams > 1:
        return partial(beam_candidates, width=options.num_beams), options.num_beams
    if options.temperature == 0.0:
        return greedy_candidates, 1
    if options.num_beams > 1:
        raise UserError(
            f"decode.num_beams = {options.num_beams} and decode.temperature = {options.temperature} cannot be "
            "combined: use beam search (temperature = 0) or sampling (num_beams = 1)"
        )
    samples = options.num_return_sequences
    uniform = random_numbers(options.seed, keys, samples, limit).to(device)
    return partial(sample_candidates, uniform=uniform, options=options), samples


def greedy_candidates(logits: Tensor, base: Tensor, sources: Tensor, step: int) -> Candidates:
    """The best token of the only hypothesis."""
    logit, token = blockwise_topk(logits[:, 0], 1)
    return Candidates(torch.zeros_like(token), token, base + logit)


def beam_candidates(logits: Tensor, base: Tensor, sources: Tensor, step: int, width: int) -> Candidates:
    """The best tokens of all hypotheses together, best first: twice the width, so that enough remain if `width` end."""
    logit, token = blockwise_topk(logits, min(2 * width, logits.size(-1)))
    total, index = (base[..., None] + logit).flatten(1).topk(min(2 * width, logit[0].numel()))
    return Candidates(index // logit.size(-1), token.flatten(1).gather(1, index), total)


def sample_candidates(
    logits: Tensor, base: Tensor, sources: Tensor, step: int, uniform: Tensor, options: DecodeOptions
) -> Candidates:
    """One sampled token for each sample; the first tokens are all sampled from the one hypothesis there is."""
    drawn = uniform[step, sources]  # (batch, samples)
    samples = drawn.size(1)
    truncated = truncate(logits / options.temperature, options.top_k, options.top_p, options.min_p)
    token = draw(truncated.expand(-1, samples, -1), drawn)
    total = base + logits.expand(-1, samples, -1).gather(-1, token[..., None]).squeeze(-1)
    parent = torch.arange(samples, device=token.device).clamp(max=base.size(1) - 1)
    return Candidates(parent.expand_as(token), token, total)


def select_live(candidates: Candidates, ended: Tensor, width: int) -> Candidates:
    """The candidates that did not end, at most `width`."""
    total = candidates.total.masked_fill(ended, -torch.inf)
    if total.size(1) <= width:
        return candidates._replace(total=total)
    total, index = total.topk(width)
    return Candidates(candidates.parent.gather(1, index), candidates.token.gather(1, index), total)


def blockwise_topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and indices of `logits.topk(count)`, in half its time or less.

    The `count` best are in the `count` blocks with the highest maxima, and a maximum takes vector instructions.
    """
    size = logits.size(-1)
    blocks = size // BLOCK
    if blocks <= count:
        values, indices = logits.topk(count)
        return values, indices
    highest = logits[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK)).amax(-1).topk(count).indices
    within = (highest[..., None] * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(-2)
    remainder = torch.arange(blocks * BLOCK, size, device=logits.device).expand(*highest.shape[:-1], -1)
    indices = torch.cat([within, remainder], -1)
    values, chosen = logits.gather(-1, indices).topk(count)
    return values, indices.gather(-1, chosen)


# ── sampling: random numbers that do not depend on the batch ─────────────────────────────────────────────────────────


def truncate(logits: Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Remove unlikely tokens: all but the `top_k` best; all but the fewest with a mass of `top_p` (Holtzman et al.
    2020); those less likely than `min_p` times the best (Nguyen et al. 2024). The best one is always kept."""
    if 0 < top_k < logits.size(-1):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[..., -1:], -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.softmax(-1).sort(descending=True, stable=True)
        removed = ordered.cumsum(-1) - ordered >= top_p  # the tokens before it have the mass already
        logits = logits.masked_fill(torch.zeros_like(removed).scatter(-1, order, removed), -torch.inf)
    if min_p > 0.0:
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(min_p), -torch.inf)
    return logits


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """One token from each softmax, by inverting its distribution function at `uniform` (…), numbers in [0, 1).

    The tokens keep the vocabulary's order, so a rounding error in a logit moves a border by as little.
    """
    mass = logits.softmax(-1).cumsum(-1)
    index = torch.searchsorted(mass, (uniform * mass[..., -1])[..., None], right=True)
    return index.squeeze(-1).clamp(max=logits.size(-1) - 1)


def random_numbers(seed: int, keys: Sequence[int], samples: int, length: int) -> Tensor:
    """(length, sources, samples) uniform numbers: a pure function of (seed, the source's key, the sample, the step)."""
    columns = [
        [np.random.default_rng([seed, key, sample]).random(length, dtype=np.float32) for sample in range(samples)]
        for key in keys
    ]
    return torch.from_numpy(np.array(columns)).permute(2, 0, 1).contiguous()


def key_of(tokens: Sequence[int] | np.ndarray) -> int:
    """A hash of an input, such as a text's tokens: others draw other numbers, the same input the same ones."""
    return int.from_bytes(blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest(), "little")
