"""A prompt of 16,384 tokens: memory grows with its length, not with the square of it, and splits change nothing."""

import json
import subprocess
import sys

import pytest
import torch

from regard.layers.autoregressive import EMPTY, TransformerLM
from regard.layers.inputs import TokenBatch
from regard.models.registry import build
from tests.models.test_laws import alike

LENGTH = 16384
MODELS = {
    "gpt": dict(family="gpt", width=32, heads=2, depth=2, max_positions=LENGTH),
    "gpt-3": dict(family="gpt", width=32, heads=2, depth=2, max_positions=LENGTH, attention_pattern="gl", window=256),
    "llama": dict(family="llama", width=32, heads=4, key_heads=2, depth=2, max_positions=LENGTH),
}
MEASURE = """
import json, resource, sys
import torch
from regard.layers.inputs import TokenBatch
from regard.models.registry import build

model, lengths = json.loads(sys.argv[1])
network = build(model, vocabulary=31).eval()
with torch.inference_mode():
    network.start(TokenBatch(torch.randint(0, 31, (len(lengths), 64)), torch.tensor([64] * len(lengths))))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    network.start(TokenBatch(torch.randint(0, 31, (len(lengths), max(lengths))), torch.tensor(lengths)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def megabytes(model: dict, *lengths: int) -> float:
    """The peak memory of a batch of prompts of these lengths, in a separate process."""
    command = [sys.executable, "-c", MEASURE, json.dumps([model, lengths])]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_memory_grows_with_the_length_alone(model: dict) -> None:
    """The weights of one head alone would take 1,024 MB; half the tokens take about half of what all take."""
    half, whole = megabytes(model, LENGTH // 2), megabytes(model, LENGTH)
    assert whole < 160
    assert whole < 2.5 * half + 16


def test_batches_of_prompts_of_other_lengths_too() -> None:
    assert megabytes(MODELS["llama"], LENGTH, LENGTH // 3) < 320


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_splits_of_a_long_text_change_nothing(model: dict) -> None:
    torch.manual_seed(0)
    network, length = build(model, vocabulary=31).eval(), 2100
    assert isinstance(network, TransformerLM)
    tokens = torch.randint(0, 31, (1, length))
    whole = network(tokens)
    state, pieces = EMPTY, []
    for chunk in tokens.split([1, 1500, 2, 300, 1, 296], 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), whole)
    state = network.start(TokenBatch(torch.cat([tokens, tokens.flip(1)]), torch.tensor([length, 700])))
    logits, _ = network.step(torch.stack([tokens[0, -1:], tokens.flip(1)[0, 699:700]]), state)
    alike(logits[0, -1], whole[0, -1])
