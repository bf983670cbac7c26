"""A training step of a small GPT: regard's own loop beside nanoGPT's and transformers', on the same mathematics.

nanoGPT is no package: NANOGPT names a folder with its model.py; without one that comparison is left out, and said so.
"""

import importlib.util
import os
import random
import sys
import warnings
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from benchmarks.sides import Result, Work, compare
from benchmarks.training import ours, prepared

CHARACTERS = 61  # and four special tokens: 65, as tiny Shakespeare has letters
SHAPES = {"4×128": (4, 4, 128, 64, 12), "6×384": (6, 6, 384, 256, 8)}  # depth, heads, width, context, batch
STEPS = {
    "4×128": 50,
    "6×384": 5,
}  # a round: seconds, so that a moment of other work on the machine is a small part of it
RECIPE = """
task = "generate"
[data]
train = "train.txt"
[tokenizer]
kind = "characters"
[model]
family = "gpt"
depth = {0}
heads = {1}
width = {2}
max_positions = {3}
dropout = 0.0
bias = {bias}
activation = "{activation}"
[train]
batch_size = {4}
max_steps = 1000000
"""
PEERS = {"nanogpt": dict(bias="false", activation="gelu"), "transformers": dict(bias="true", activation="gelu_tanh")}


def measure(rounds: int, threads: int) -> list[Result]:
    results = []
    for peer, mathematics in PEERS.items():
        if peer == "nanogpt" and not (nanogpt := _nanogpt()):
            print("nanoGPT is left out: set NANOGPT to a folder with its model.py", file=sys.stderr)
            continue
        for name, shape in SHAPES.items():
            with TemporaryDirectory() as folder:
                root = Path(folder)
                (root / "recipe.toml").write_text(RECIPE.format(*shape, **mathematics))
                write_text(root / "train.txt")
                other = (theirs, folder, threads, STEPS[name], shape, nanogpt if peer == "nanogpt" else None)
                sides = {"regard": (ours, folder, threads, STEPS[name]), "peer": other}
                tokens = STEPS[name] * shape[3] * shape[4]
                title = f"GPT {name}, beside {peer}"
                results.append(compare(title, "tokens/s", tokens, sides, rounds, agreement))
    return results


def _nanogpt() -> Path | None:
    path = Path(os.environ.get("NANOGPT", "nowhere")) / "model.py"
    return path if path.is_file() else None


def write_text(path: Path) -> None:
    """Letters at random, every one of them there."""
    rng = random.Random(1)
    letters = [chr(ord("0") + index) for index in range(CHARACTERS)]
    path.write_text("".join(letters + rng.choices(letters, k=100_000)), encoding="utf-8")


def theirs(folder: str, threads: int, steps: int, shape: tuple[int, ...], nanogpt: Path | None) -> Work:
    """The peer's model in the loop that its own training has on a CPU."""
    torch.set_num_threads(threads)
    recipe, network, task = prepared(folder)
    vocabulary = task.tokenizer.size
    torch.manual_seed(1)
    model, step = _nano(nanogpt, shape, vocabulary) if nanogpt else _hugging(shape, vocabulary)
    sizes = [sum(each.numel() for each in module.parameters()) for module in (network, model)]
    assert sizes[0] == sizes[1], f"not of equal shape: {sizes[0]:,} and {sizes[1]:,} parameters"
    betas, rate, decay = recipe.train.betas, recipe.train.learning_rate, recipe.train.weight_decay
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    rest = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=betas)
    stream = [batch.tokens for batch in islice(task.batches(0, 0, 1), steps)]

    def work() -> float:
        loss = torch.zeros(())
        for tokens in stream:
            loss = step(tokens)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return work


def _nano(path: Path, shape: tuple[int, ...], vocabulary: int) -> tuple[nn.Module, Any]:
    specification = importlib.util.spec_from_file_location("nanogpt", path)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules["nanogpt"] = module
    specification.loader.exec_module(module)
    depth, heads, width, context, _ = shape
    config = module.GPTConfig(
        n_layer=depth, n_head=heads, n_embd=width, block_size=context, vocab_size=vocabulary, dropout=0.0, bias=False
    )
    model = module.GPT(config)
    return model, lambda tokens: model(tokens[:, :-1], tokens[:, 1:].contiguous())[1]


def _hugging(shape: tuple[int, ...], vocabulary: int) -> tuple[nn.Module, Any]:
    warnings.simplefilter("ignore")
    from transformers import GPT2Config, GPT2LMHeadModel

    depth, heads, width, context, _ = shape
    sizes: dict[str, Any] = dict(n_layer=depth, n_head=heads, n_embd=width, n_positions=context, vocab_size=vocabulary)
    dropout: dict[str, Any] = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **dropout))
    model.train()

    def step(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :-1]).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return model, step


def agreement(ours: float, theirs: float) -> str:
    return f"loss after the first round {ours:.3f} and {theirs:.3f}"
