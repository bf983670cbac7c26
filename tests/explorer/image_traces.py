"""Traces over an image, from attention with random weights: 3 × 5 patches after [CLS], and four words."""

import numpy as np
import torch

from regard.attention.recording import record, scope
from regard.attention.trace import Axes, Axis, Picture, Trace
from regard.attention.variants import multihead

ROWS, COLUMNS, TOKENS = 3, 5, ("[CLS]",)
WORDS = [" a", " red", " circle", "</s>"]
SELF, CROSS = "encoder.blocks.0.self", "decoder.blocks.0.cross"
BOX = (13.0, 0.0, 63.0, 30.0)  # patches of 10 × 10 pixels


@torch.no_grad()
def image_trace(tokens: tuple[str, ...] = TOKENS, caption: bool = True, box: tuple = BOX) -> Trace:
    torch.manual_seed(1)
    attention = multihead(14, 2)
    patches = 4 * torch.randn(1, len(tokens) + ROWS * COLUMNS, 14)
    with record() as recorder:
        with scope("encoder"), scope("blocks.0"), scope("self"):
            attention.self_attend(patches)
        if caption:
            with scope("decoder"), scope("blocks.0"), scope("cross"):
                attention(4 * torch.randn(1, len(WORDS), 14), attention.remember(patches))
    source = Axis.patches(ROWS, COLUMNS, tokens)
    axes = Axes({"encoder.*": (source, source), "*.cross": (Axis(WORDS), source)}, source)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 76, 3), np.uint8)
    return Trace(recorder, axes, "a red circle", picture=Picture(torch.from_numpy(pixels), box, "photo.png"))
