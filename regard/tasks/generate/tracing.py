"""Attention of a causal language model over a prompt and its continuation."""

from typing import Any

import torch

from regard.attention.trace import Axes, Axis, Trace, record
from regard.text.tokenizer import Tokenizer


@torch.no_grad()
def trace_causal(
    network: Any, tokenizer: Tokenizer, prompt: list[int], output: list[int], prove: bool = False
) -> Trace:
    """One pass over a prompt and its continuation."""
    tokens = [*prompt, *output]
    with record(prove) as recorder:
        network(torch.tensor([tokens], device=next(network.parameters()).device))
    pieces = tokenizer.pieces(tokens)
    following = [*pieces[1:], tokenizer.pieces([tokenizer.end])[0] if tokenizer.end >= 0 else "…"]
    return Trace(recorder, Axes.causal(Axis(pieces), Axis(following)), tokenizer.decode(output))
