"""Induction heads: where a model looks when something it has read comes again. Olsson et al. 2022.

    … gub runs … gub        prefix matching: from the second "gub" to "runs", what followed the first
    gub runs → red⏎         answers: from the end of a question to the answers in the prompt that are right for it
    gub sings →

Both are shares of a head's attention between 0 and 1, means over many places.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.trace import Recorder, record
from regard.data.synthetic.in_context import LESSONS, questions
from regard.data.synthetic.prompts import completion
from regard.layers.inputs import pad
from regard.text.vocabulary import Tokenizer

ROWS, LENGTH = 32, 50  # random sequences, and how many tokens come twice in each
QUESTIONS, SHOTS = 200, 8


def induction_scores(network: Any, tokens: Sequence[int], rows: int = ROWS, length: int = LENGTH) -> dict[str, Tensor]:
    """Prefix matching by site, (heads): on random sequences of these tokens, read twice over."""
    length = min(length, network.max_positions // 2)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([torch.randperm(len(tokens), generator=generator)[:length] for _ in range(rows)])
    once = torch.tensor(tokens)[drawn]
    places = torch.arange(length, 2 * length)
    seen = torch.zeros(rows, 2 * length, 2 * length, dtype=torch.bool)
    seen[:, places, places - length + 1] = True
    return shares(network, once.repeat(1, 2), seen)


def answer_scores(network: Any, prompts: Sequence[list[int]], answers: Sequence[int]) -> dict[str, Tensor]:
    """By site, (heads): from the last token of each prompt to those of its tokens that are the answer's first."""
    batch = pad(prompts, 0)
    last = torch.arange(batch.tokens.size(1)) == batch.lengths[:, None] - 1
    right = (batch.tokens == torch.tensor(answers)[:, None]) & batch.real
    return shares(network, batch.tokens, last[:, :, None] & right[:, None])


@torch.no_grad()
def shares(network: Any, tokens: Tensor, seen: Tensor) -> dict[str, Tensor]:
    """How much of each head's attention goes where `seen` (batch, queries, keys) is True, of queries that have such."""
    device = next(network.parameters()).device
    with record() as recorder:
        network(tokens.to(device))
    return {site: share(weights, seen) for site, weights in _weights(recorder).items()}


def share(weights: Tensor, seen: Tensor) -> Tensor:
    """(heads) from weights (batch, heads, queries, keys)."""
    queries = seen.any(-1)
    return (weights * seen[:, None]).sum(-1).transpose(1, 2)[queries].mean(0)


def _weights(recorder: Recorder) -> dict[str, Tensor]:
    return {site: records[0].weights().float().cpu() for site, records in recorder.records.items()}


def ordinary(tokenizer: Tokenizer) -> list[int]:
    """The tokens that text is made of: no special ones."""
    return [token for token in range(tokenizer.size) if tokenizer.shows(token)]


def heads(model: Any) -> list[dict[str, Any]]:
    """Each head of a language model with its scores; of answers where its recipe makes questions to ask."""
    tokenizer = model.vocabulary.target
    found = {"prefix_matching": induction_scores(model.network, ordinary(tokenizer))}
    made = model.recipe.data.generate if model.recipe else ""
    if made in LESSONS:
        found["answers"] = answer_scores(model.network, *asked(made, tokenizer, model.network.max_positions))
    sites = found["prefix_matching"]
    return [
        {"site": site, "head": head, **{name: round(float(scores[site][head]), 3) for name, scores in found.items()}}
        for site in sites
        for head in range(len(sites[site]))
    ]


def asked(name: str, tokenizer: Tokenizer, limit: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of a lesson's validation part whose answer stands in them, and the token that it begins with."""
    prompts, answers = [], []
    for question in questions(name, 1, "validation", QUESTIONS, SHOTS):
        tokens = tokenizer.prompt(question.prompt)
        first = tokenizer.encode(completion(question.label, LESSONS[name].template))[0]
        if first in tokens and len(tokens) <= limit:
            prompts.append(tokens)
            answers.append(first)
    return prompts, answers
