"""A small task that trains in milliseconds: a word is predicted from its neighbours. Also a program, for kills.

python tests/toy.py RUN key=value …     trains, or resumes RUN, and prints the weights' sha256
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.config.recipe import Recipe, load_recipe
from regard.layers.pytree import select_rows
from regard.training.display import Display
from regard.training.loop import Outcome, RunOutput, train
from regard.training.objective import BatchSource

WORDS, WIDTH, LENGTH = 13, 7, 5
HEADER = (
    "task = 'translate'\n[data]\ntrain = 'none'\nvalidation = 'none'\n"
    "[model]\nfamily = 'toy'\n[train]\nbatch_size = 11\nmax_steps = 23\n"
)


class ToyBatch(NamedTuple):
    tokens: Tensor
    indices: Tensor


class Network(nn.Module):
    """An embedding, dropout, a norm and a projection that shares the embedding's weights."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(LENGTH * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(WIDTH, WORDS)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.dropout(self.embedding(tokens)).flatten(1)
        return self.output(self.norm(self.mix(hidden)))


class ToyTask:
    """Batches of different sizes; `poison` are the numbers of batches whose loss is not a number."""

    unit, score_name, ascending = "words", "score", True
    batches_per_epoch = 10

    def __init__(self, batch_size: int, poison: frozenset[int] = frozenset(), scores: tuple[float, ...] = ()) -> None:
        self.batch_size, self.poison, self.scores = batch_size, poison, list(scores)
        self.fingerprint = {"toy": "0"}
        self.reports: dict[str, str] = {}

    def batch(self, index: int) -> ToyBatch:
        generator = torch.Generator().manual_seed(index)
        size = self.batch_size + index % 3
        tokens = torch.randint(WORDS, (size, LENGTH), generator=generator)
        return ToyBatch(tokens, torch.arange(size) + 1000 * index)

    def batches(self, start: int, rank: int, world: int) -> Iterator[ToyBatch]:
        index = start * world + rank
        while True:
            yield self.batch(index)
            index += world

    def epoch(self, batches: int) -> float:
        return batches / self.batches_per_epoch

    def num_targets(self, batch: ToyBatch) -> int:
        return len(batch.tokens)

    def loss(self, network: nn.Module, batch: ToyBatch) -> Tensor:
        time.sleep(float(os.environ.get("TOY_SLEEP", "0")))
        loss = nn.functional.cross_entropy(network(batch.tokens), batch.tokens.sum(1) % WORDS, reduction="sum")
        return loss * float("nan") if int(batch.indices[0]) // 1000 in self.poison else loss

    indivisible = False

    def split(self, batch: ToyBatch, pieces: int) -> list[ToyBatch]:
        return [select_rows(batch, slice(index, None, pieces)) for index in range(min(pieces, len(batch.indices)))]

    def validate(self, network: nn.Module) -> dict[str, float]:
        if self.scores:
            return {"score": self.scores.pop(0)}
        torch.rand(3)  # an evaluation that uses random numbers must not change the training
        with torch.no_grad():
            loss = float(self.loss(network, self.batch(10**6))) / self.batch_size
        return {"loss": loss, "score": -loss}

    def preview(self, network: nn.Module, count: int) -> list[tuple[str, str, str]]:
        return [("source", "reference", f"answer {index}") for index in range(count if network else 0)]


def make_recipe(run: Path, *overrides: str) -> Recipe:
    """The toy's recipe with some keys changed, as `regard train` would resolve it."""
    path = run.with_name(f"{run.name}.toml")
    if not path.exists():  # by rename: of several processes, none reads what another has half written
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(HEADER)
        draft.replace(path)
    return load_recipe(path, [f"output={run}", *overrides])


def go(
    run: Path,
    *overrides: str,
    task: ToyTask | None = None,
    dropout: float = 0.1,
    source: Callable[[Network], BatchSource] | None = None,
    quiet: bool = True,
    **more,
) -> tuple[Outcome, Network]:
    """Train the toy in `run`, or resume it; the same call does both, as `train` and `resume` do."""
    recipe = make_recipe(run, *overrides)
    run.mkdir(exist_ok=True)
    torch.manual_seed(recipe.seed)
    network = Network(dropout)

    def write_model(folder: Path) -> None:
        save_file({name: weights.data for name, weights in network.named_parameters()}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")

    output = RunOutput(run, write_model, Display(quiet))
    batches = source(network) if source else None
    outcome = train(network, task or ToyTask(recipe.train.batch_size), recipe, output, batches, **more)
    return outcome, network


def digest(network: nn.Module) -> str:
    """The sha256 of all weights."""
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in network.parameters())).hexdigest()


if __name__ == "__main__":
    outcome, trained = go(Path(sys.argv[1]), *sys.argv[2:])
    print(outcome.status, digest(trained))
