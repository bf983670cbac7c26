"""From a recipe to a trained run: vocabulary, data, network and the loop, put together."""

from pathlib import Path

import torch
from torch import nn

from regard import models
from regard.errors import UserError
from regard.inputs.text import Vocabulary
from regard.interop import folder as folders
from regard.recipe import Recipe
from regard.tasks import build, require
from regard.tasks.parallel import learn_vocabulary
from regard.training import checkpoint
from regard.training.display import Display
from regard.training.distributed import choose_device
from regard.training.loop import Outcome, train
from regard.training.run import open_run, refuse_existing, start_run


def start(recipe: Recipe, quiet: bool = False) -> Outcome:
    """Train a new run; what can be wrong with recipe or data shows before its folder is made."""
    refuse_existing(Path(recipe.output))
    return _train(recipe, None, quiet)


def resume(run: Path, quiet: bool = False) -> Outcome:
    """Go on with a run from its newest whole checkpoint, or from the start where none was reached."""
    recipe = open_run(run)
    return _train(recipe, run, quiet)


def _train(recipe: Recipe, run: Path | None, quiet: bool) -> Outcome:
    display = Display(quiet)
    network, vocabulary, config = prepare_network(recipe, run)
    task = build(recipe, vocabulary=vocabulary)
    for part, corpus in (("train", task.training), ("validation", task.validation)):
        if corpus is not None:
            display.note(f"{part}: {corpus.report}")
    size = sum(parameter.numel() for parameter in network.parameters())
    display.note(f"{recipe.model.get('family', models.family_of(network))}, {size:,} parameters")
    run = run or start_run(recipe)
    generation = generation_of(recipe)

    def write_model(folder: Path) -> None:
        folders.save(folder, network, vocabulary, generation, config=config)

    return train(network, task, recipe, run, write_model, display)


def prepare_network(recipe: Recipe, run: Path | None = None) -> tuple[nn.Module, Vocabulary, dict | None]:
    """A new network with a learnt vocabulary, or the weights `model.from` names with the config they came with."""
    require(recipe.task)
    choose_device(recipe.train.device)
    if "from" in recipe.model:
        extra = sorted(set(recipe.model) - {"from", "family"})
        if extra:
            raise UserError(f"model.from takes its shape from the folder: remove model.{extra[0]}")
        loaded = folders.load(Path(recipe.model["from"]).expanduser())
        return loaded.network, loaded.vocabulary, loaded.config
    other = 1 if recipe.tokenizer.joint else 2  # what cannot be built is refused before a vocabulary is learnt
    models.configure(recipe.model, source_vocabulary=1, target_vocabulary=other)
    newest = checkpoint.newest(run)[0] if run else None
    vocabulary = Vocabulary.load(newest) if newest else learn_vocabulary(recipe)
    sizes = {"source_vocabulary": vocabulary.source.size, "target_vocabulary": vocabulary.target.size}
    torch.manual_seed(recipe.seed)
    return models.build(recipe.model, **sizes), vocabulary, None


def generation_of(recipe: Recipe) -> dict:
    """The recipe's way of decoding, as a checkpoint carries it."""
    options = recipe.decode
    return {
        name: getattr(options, name) for name in options.__dataclass_fields__ if name not in ("seed", "max_new_tokens")
    } | ({"max_new_tokens": options.max_new_tokens} if options.max_new_tokens else {})
