"""A run: a recipe's data, network and folder brought together, and handed to the training loop."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import models
from regard.errors import UserError
from regard.inputs.text import Vocabulary
from regard.interop import folder as checkpoints
from regard.recipe import Recipe
from regard.tasks import build
from regard.training.display import Display
from regard.training.distributed import rank
from regard.training.loop import Outcome, train
from regard.training.run import open_run, refuse_existing, start_run

TOKENIZER = "tokenizer"  # the folder in a run's folder that holds its vocabulary


def start(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Train a new run; its folder is made once data and model are known to be sound."""
    refuse_existing(Path(recipe.output))
    run = Run(recipe)
    folder = start_run(recipe)
    if rank() == 0:
        run.vocabulary.save(folder / TOKENIZER)
    return run.train(folder, quiet)


def resume(folder: Path, quiet: bool = False) -> dict[str, Any]:
    """Go on with a run from its newest checkpoint; a folder that was moved is resumed where it is now."""
    if not folder.is_dir():
        raise UserError(f"no run at {folder}: there is no such folder")
    recipe = replace(open_run(folder), output=str(folder))
    stored = folder / TOKENIZER
    return Run(recipe, Vocabulary.load(stored) if stored.is_dir() else None).train(folder, quiet)


class Run:
    """The task and the network of a recipe."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> None:
        self.recipe = recipe
        self.origin = _origin(recipe)
        known = vocabulary or (self.origin.vocabulary if self.origin else None)
        self.task = build(recipe, vocabulary=known)
        self.vocabulary = self.task.vocabulary
        torch.manual_seed(recipe.seed)
        self.network: nn.Module = self.origin.network if self.origin else self._new_network()

    def _new_network(self) -> nn.Module:
        sizes = {"source_vocabulary": self.vocabulary.source.size, "target_vocabulary": self.vocabulary.target.size}
        return models.build(self.recipe.model, **sizes)

    def train(self, folder: Path, quiet: bool) -> dict[str, Any]:
        outcome = train(self.network.train(), self.task, self.recipe, folder, self.write, Display(quiet))
        return _summary(folder, self.task.score_name, outcome)

    def write(self, folder: Path) -> None:
        """The model as others read it, with the recipe's way to decode."""
        config = self.origin.config if self.origin else None
        checkpoints.save(folder, self.network, self.vocabulary, asdict(self.recipe.decode), config=config)


def _origin(recipe: Recipe) -> checkpoints.Loaded | None:
    """The checkpoint that `model.from` names; its shape and vocabulary are given, so nothing else may be asked for."""
    given = dict(recipe.model)
    if "from" not in given:
        return None
    origin = Path(str(given.pop("from"))).expanduser()
    if given:
        raise UserError(
            f"model.from = '{origin}' brings its own shape: remove {', '.join(f'model.{key}' for key in given)}"
        )
    beside = Path(recipe.origin) / origin
    return checkpoints.load(beside if beside.is_dir() else origin)


def _summary(folder: Path, score_name: str, outcome: Outcome) -> dict[str, Any]:
    progress = outcome.progress
    return {
        "run": str(folder),
        "status": outcome.status,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "best_step": progress.best_step,
        f"best_{score_name}": progress.best_score,
    }
