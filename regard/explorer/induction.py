"""Induction heads: attention to what followed an earlier occurrence of the current token. Olsson et al. 2022.

    … gub runs … gub        prefix matching: from the second "gub" to "runs", what followed the first
    gub runs → red⏎         answers: from the end of a question to the answers in the prompt that are right for it
    gub sings →

Both are shares of a head's attention between 0 and 1, means over many positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.attention.recording import record
from regard.data.synthetic.in_context import LESSONS, completion, questions
from regard.layers.inputs import pad
from regard.layers.protocols import CausalLM
from regard.model import Model
from regard.text.tokenizer import Tokenizer

ROWS, LENGTH = 32, 50  # random sequences, and the number of tokens repeated in each
QUESTIONS, SHOTS = 200, 8


def induction_scores(
    network: CausalLM, tokens: Sequence[int], rows: int = ROWS, length: int = LENGTH
) -> dict[str, Tensor]:
    """Prefix matching by site, (heads): on random sequences of these tokens, each repeated once."""
    length = min(length, network.max_positions // 2)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([torch.randperm(len(tokens), generator=generator)[:length] for _ in range(rows)])
    sequences = torch.tensor(tokens)[drawn].repeat(1, 2)
    positions = torch.arange(length, 2 * length)
    matches = torch.zeros(rows, 2 * length, 2 * length, dtype=torch.bool)
    matches[:, positions, positions - length + 1] = True
    return attention_shares(network, sequences, matches)


def answer_scores(network: CausalLM, prompts: Sequence[list[int]], answers: Sequence[int]) -> dict[str, Tensor]:
    """By site, (heads): from the last token of each prompt to those of its tokens that begin the answer."""
    batch = pad(prompts, 0)
    last = torch.arange(batch.tokens.size(1)) == batch.lengths[:, None] - 1
    right = (batch.tokens == torch.tensor(answers)[:, None]) & batch.real
    return attention_shares(network, batch.tokens, last[:, :, None] & right[:, None])


@torch.no_grad()
def attention_shares(network: CausalLM, tokens: Tensor, matches: Tensor) -> dict[str, Tensor]:
    """By site, (heads): the share of attention where `matches` (batch, queries, keys), of queries that have a match."""
    device = next(network.parameters()).device
    with record() as recorder:
        network(tokens.to(device))
    return {
        site: attention_share(records[0].weights().float().cpu(), matches) for site, records in recorder.records.items()
    }


def attention_share(weights: Tensor, matches: Tensor) -> Tensor:
    """(heads) from weights (batch, heads, queries, keys)."""
    queries = matches.any(-1)
    return (weights * matches[:, None]).sum(-1).transpose(1, 2)[queries].mean(0)


def text_tokens(tokenizer: Tokenizer) -> list[int]:
    """All tokens but special ones."""
    return [token for token in range(tokenizer.size) if tokenizer.shows(token)]


def head_scores(model: Model) -> list[dict[str, str | int | float]]:
    """Each head of a causal language model with its scores; of answers if its recipe has an in-context dataset."""
    tokenizer = model.processor.target
    scores = {"prefix_matching": induction_scores(model.network, text_tokens(tokenizer))}
    dataset = model.recipe.data.synthetic if model.recipe else ""
    if dataset in LESSONS:
        prompts, answers = answerable_prompts(dataset, tokenizer, model.network.max_positions)
        scores["answers"] = answer_scores(model.network, prompts, answers)
    return [
        {"site": site, "head": head, **{name: round(float(by_site[site][head]), 3) for name, by_site in scores.items()}}
        for site, heads in scores["prefix_matching"].items()
        for head in range(len(heads))
    ]


def answerable_prompts(dataset: str, tokenizer: Tokenizer, limit: int) -> tuple[list[list[int]], list[int]]:
    """Validation prompts that contain their answer, and the first token of each answer."""
    prompts = []
    answers = []
    for question in questions(dataset, 1, "validation", QUESTIONS, SHOTS):
        tokens = tokenizer.prompt(question.prompt)
        first = tokenizer.encode(completion(question.label, LESSONS[dataset].template))[0]
        if first in tokens and len(tokens) <= limit:
            prompts.append(tokens)
            answers.append(first)
    return prompts, answers
