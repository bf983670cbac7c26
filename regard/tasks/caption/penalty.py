"""Doubly stochastic attention: over a whole caption, each cell of the image is attended to about once.

Shapes: weights (batch, heads, tokens, positions), real (batch, tokens).
"""

import torch
from torch import Tensor

from regard.attention.recording import Recorder

CROSS = "cross"  # the last part of the name of a cross-attention site


def doubly_stochastic_penalty(recorder: Recorder, real: Tensor) -> Tensor:
    """Σᵢ (1 − Σₜ αₜᵢ)², summed over the images, mean over sites and heads. Xu et al. 2015, equation 14.

    The weights were recorded during the pass, so they have gradients. Padding after a caption is left out.
    """
    sites = [records for site, records in recorder.records.items() if site.endswith(CROSS)]
    penalties = []
    for records in sites:
        weights = torch.cat([record.weights() for record in records], -2)
        attended = (weights * real[:, None, :, None]).sum(-2)
        penalties.append((1 - attended).square().sum(-1).mean(1).sum())
    return torch.stack(penalties).mean()
