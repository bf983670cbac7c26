"""A training step of the small Transformer: regard's own loop beside a plain loop around torch's nn.Transformer."""

import gc
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sides import Result, Work, compare

STEPS = 10  # a round
WORDS, WIDTH, HEADS, DEPTH, FEEDFORWARD, DROPOUT = 8000, 256, 8, 3, 1024, 0.1
RECIPE = f"""
task = "translate"
[data]
train = "train.tsv"
[tokenizer]
kind = "words"
vocab_size = {WORDS}
min_frequency = 1
[model]
family = "transformer"
preset = "small"
dropout = {DROPOUT}
[train]
batch_tokens = 1024
max_steps = 1000000
"""


def measure(rounds: int, threads: int) -> list[Result]:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "recipe.toml").write_text(RECIPE)
        write_corpus(root / "train.tsv")
        tokens = sum(int(batch.target.lengths.sum() - len(batch.indices)) for batch in islice(batches(folder), STEPS))
        sides = {"regard": (ours, folder, threads), "peer": (theirs, folder, threads)}
        return [compare("training step, small", "target tokens/s", tokens, sides, rounds, agreement)]


def write_corpus(path: Path) -> None:
    """Pairs of 9 to 23 words, every word of the vocabulary among them."""
    rng = random.Random(1)
    words = [f"w{index}" for index in range(WORDS - 4)]
    sides = [words + rng.choices(words, k=40_000) for _ in range(2)]
    with path.open("w") as file:
        while sides[0] and sides[1]:
            lengths = rng.randint(9, 23), rng.randint(9, 23)
            texts = [" ".join(side[:length]) for side, length in zip(sides, lengths, strict=True)]
            sides = [side[length:] for side, length in zip(sides, lengths, strict=True)]
            file.write("\t".join(texts) + "\n")


def prepared(folder: str) -> tuple[Any, nn.Module, Any]:
    """The recipe, its network and its task, as `regard train` makes them."""
    from regard.config.recipe import load_recipe
    from regard.tasks.registry import build
    from regard.training.build import prepare_network

    recipe = load_recipe(Path(folder) / "recipe.toml", [f"output={folder}/run"])
    loaded = prepare_network(recipe)
    task = build(recipe, loaded.processor, loaded.network, Path(folder) / "cache")
    return recipe, loaded.network, task


def batches(folder: str) -> Iterator[Any]:
    """The same batches for both sides, without end."""
    return prepared(folder)[2].batches(0, 0, 1)


def ours(folder: str, threads: int, steps: int = STEPS) -> Work:
    """So many of the loop's own steps a round, with the loop's own settings of the machine."""
    from regard.runtime.machine import tune_malloc
    from regard.training.display import Display
    from regard.training.distributed import Group
    from regard.training.loop import Loop, RunOutput

    torch.set_num_threads(threads)
    tune_malloc()
    recipe, network, task = prepared(folder)
    output = RunOutput(Path(folder), lambda _: None, Display(quiet=True))
    loop = Loop(network, task, recipe, output, Group(torch.device("cpu")))
    stream = list(islice(task.batches(0, 0, 1), steps))
    gc.freeze()  # as `gc_frozen` does for a whole run

    def work() -> float:
        with loop.tuned():
            for batch in stream:
                loop.step([batch])
        return loop.window.loss

    return work


class Plain(nn.Module):
    """What a tutorial writes: nn.Transformer between one table of embeddings and its transpose."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, WIDTH)
        nn.init.normal_(self.table.weight, std=WIDTH**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        angles = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.positions = nn.Buffer(torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.dropout = nn.Dropout(DROPOUT)
        self.inner = nn.Transformer(WIDTH, HEADS, DEPTH, DEPTH, FEEDFORWARD, DROPOUT, batch_first=True)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.table(tokens) * WIDTH**0.5 + self.positions[: tokens.size(1)])

    def forward(self, source: Tensor, target: Tensor, padding: int) -> Tensor:
        hidden, length = source == padding, target.size(1)
        states = self.inner(
            self.embed(source),
            self.embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return F.linear(states, self.table.weight, self.bias)


def theirs(folder: str, threads: int) -> Work:
    torch.set_num_threads(threads)
    _, network, task = prepared(folder)
    vocabulary, padding = task.processor.target.size, task.processor.target.pad
    torch.manual_seed(1)
    model = Plain(vocabulary)
    ours, theirs = (sum(each.numel() for each in module.parameters()) for module in (network, model))
    assert abs(ours - theirs) <= 4 * WIDTH, f"not of equal shape: {ours:,} and {theirs:,} parameters"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    stream = list(islice(task.batches(0, 0, 1), STEPS))

    def work() -> float:
        loss = torch.zeros(())
        for batch in stream:
            tokens = batch.target.tokens
            logits = model(batch.source.tokens, tokens[:, :-1], padding)
            loss = F.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=padding, label_smoothing=0.1
            )
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return work


def agreement(ours: float, theirs: float) -> str:
    return f"loss after {STEPS} steps {ours:.2f} and {theirs:.2f}"
