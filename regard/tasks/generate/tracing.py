"""Attention of a causal language model over a prompt and its continuation."""

from typing import Any

import torch

from regard.attention.trace import Axes, Axis, Trace, record
from regard.text.vocabulary import Tokenizer


@torch.no_grad()
def look_back(network: Any, tokenizer: Tokenizer, prompt: list[int], answer: list[int], prove: bool = False) -> Trace:
    """The same of a language model: one pass over a prompt and what follows it."""
    tokens = [*prompt, *answer]
    with record(prove) as recorder:
        network(torch.tensor([tokens], device=next(network.parameters()).device))
    pieces = tokenizer.pieces(tokens)
    output = [*pieces[1:], tokenizer.pieces([tokenizer.end])[0] if tokenizer.end >= 0 else "…"]
    return Trace(recorder, Axes.causal(Axis(pieces), Axis(output)), tokenizer.decode(answer))
