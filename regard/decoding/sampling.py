"""Sampling the next token: truncation of the distribution, and random numbers that do not depend on the batch.

logits (…, vocabulary)
"""

import math
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor


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


def key_of(tokens: Sequence[int]) -> int:
    """A hash of a text's tokens: other texts draw other numbers, the same text the same ones."""
    return int.from_bytes(blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest(), "little")
