"""Every score, and every way of telling the decoder about the source, learns: the loss halves within 300 steps."""

import pytest
import torch
import torch.nn.functional as F

from regard.attention.variants import SCORES
from regard.layers.inputs import TokenBatch
from regard.models.registry import build

SEQ2SEQ = dict(family="seq2seq", embedding_width=24, width=48, dropout=0.0)
WAYS = {
    **{f"bahdanau, {score}": SEQ2SEQ | dict(score=score) for score in SCORES},
    **{f"luong, {score}": SEQ2SEQ | dict(score=score, order="luong") for score in SCORES},
    "input feeding": SEQ2SEQ | dict(score="bilinear", order="luong", input_feeding=True),
    **{f"context {how}": SEQ2SEQ | dict(context=how) for how in ("none", "last", "mean")},
    **{f"{cell}, {depth} deep": SEQ2SEQ | dict(cell=cell, depth=depth) for cell, depth in (("rnn", 1), ("lstm", 2))},
    "one direction": SEQ2SEQ | dict(bidirectional=False),
    "lstmn": SEQ2SEQ | dict(cell="lstmn", bidirectional=False),
    **{
        f"{focus}": SEQ2SEQ | dict(score="bilinear", order="luong", focus=focus, local_window=4)
        for focus in ("local-m", "local-p")
    },
    "convs2s": dict(family="convs2s", embedding_width=24, width=32, depth=2, dropout=0.0),
    "bytenet": dict(family="bytenet", width=48, sets=1, dilations=3, dropout=0.0),
    **{
        f"transformer, {norm}-norm, {positions}": dict(
            family="transformer",
            width=32,
            heads=4,
            depth=2,
            feedforward=64,
            dropout=0.0,
            norm=norm,
            positions=positions,
        )
        for norm, positions in (("post", "sinusoid"), ("pre", "learned"), ("post", "sinusoid_halves"))
    },
}
SYMBOLS, LENGTH, BEGIN = 11, 5, 1


def backwards(generator: torch.Generator) -> tuple[TokenBatch, torch.Tensor]:
    """A small task: a few symbols, to be reversed."""
    tokens = torch.randint(2, SYMBOLS, (32, LENGTH), generator=generator)
    return TokenBatch(tokens, torch.full((32,), LENGTH)), tokens.flip(1)


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_halves_within_300_steps(way: str):
    torch.manual_seed(0)
    network = build(WAYS[way], source_vocabulary=SYMBOLS, target_vocabulary=SYMBOLS)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(1)
    first = loss = None
    for _ in range(300):
        source, target = backwards(generator)
        shifted = torch.cat([torch.full((32, 1), BEGIN), target[:, :-1]], 1)
        loss = F.cross_entropy(network(source, shifted).flatten(0, 1), target.flatten())
        first = first or loss.item()
        if loss.item() < first / 2:
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    pytest.fail(f"the loss went from {first:.3f} only to {loss.item() if loss is not None else 0:.3f}")
