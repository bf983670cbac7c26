"""From a recipe to a trained run: vocabulary, data, network and the loop, put together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.config.recipe import DecodeOptions, Recipe
from regard.errors import UserError
from regard.interop import folder as folders
from regard.interop.folder import Loaded
from regard.interop.sentence_transformers import supported_pooling, write_pooling
from regard.layers.dropout import set_dropout
from regard.layers.lora import AdapterOptions, adapt
from regard.models import registry as models
from regard.models.heads.mlm import MaskedLM
from regard.models.layer_selection import shorten
from regard.runtime.device import choose_device
from regard.tasks.base import Task
from regard.tasks.distillation import read_teacher
from regard.tasks.registry import TASKS, build, canonical, require_support, task_of
from regard.text.vocabulary import Vocabulary
from regard.training import checkpoint
from regard.training.display import Display
from regard.training.distributed import rank
from regard.training.layerwise import apply_freezing
from regard.training.loop import Outcome, RunOutput, train
from regard.training.objective import TrainingTask
from regard.training.run_folder import find_model, lock, open_run, refuse_existing, rewrite_recipe, start_run


def start(recipe: Recipe, quiet: bool = False) -> Outcome:
    """Train a new run; what can be wrong with recipe or data shows before its folder is made."""
    refuse_existing(Path(recipe.output))
    display = Display(quiet)
    recipe = _with_weights_found(recipe, display)
    prepared = _prepare(recipe, None, display)
    run = start_run(recipe)
    with lock(run):
        return train(*prepared[:2], recipe, RunOutput(run, prepared[2], display))


def resume(run: Path, quiet: bool = False, overrides: Sequence[str] = ()) -> Outcome:
    """Go on with a run from its newest whole checkpoint, or from the start where none was reached."""
    open_run(run)
    with lock(run):
        recipe, display = open_run(run, overrides), Display(quiet)
        if rank() == 0:
            checkpoint.sweep(run)
        prepared = _prepare(recipe, run, display)
        if overrides:
            rewrite_recipe(run, recipe)
        return train(*prepared[:2], recipe, RunOutput(run, prepared[2], display))


def _prepare(
    recipe: Recipe, run: Path | None, display: Display
) -> tuple[nn.Module, TrainingTask, Callable[[Path], None]]:
    """The network, its task, and how it is written as a model."""
    loaded = prepare_network(recipe, run)
    task = prepare_task(recipe, loaded)
    for part, report in task.reports.items():
        display.note(f"{part}: {report}")
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in loaded.network.parameters()]
    size, trained = sum(size for size, _ in sizes), sum(size for size, requires in sizes if requires)
    some = "" if trained == size else f", {trained:,} of them trained"
    begun = f", from {recipe.model['from']}" if "from" in recipe.model else ""
    taught = f", taught by {recipe.distil.teacher}" if recipe.distil.teacher else ""
    display.note(f"{models.family_of(loaded.network)}, {size:,} parameters{some}{begun}{taught}")

    def write_model(folder: Path) -> None:
        network, vocabulary, generation, config, base, pooling = loaded
        folders.save(folder, network, vocabulary, generation, config=config, base=base)
        if pooling and isinstance(network, MaskedLM):  # which is read as its body was
            write_pooling(folder, pooling, network.config.width)

    return loaded.network, task, write_model


def prepare_network(recipe: Recipe, run: Path | None = None) -> Loaded:
    """The network that the recipe speaks of, with those of its weights frozen that it freezes, and its dropout."""
    loaded = _network(recipe, run)
    if recipe.train.dropout >= 0:
        set_dropout(loaded.network, recipe.train.dropout)
    apply_freezing(loaded.network, recipe.train)
    return loaded


def prepare_task(recipe: Recipe, loaded: Loaded) -> Task:
    """The recipe's task with its data, for this network, and its teacher if it has one."""
    if recipe.distil.teacher and not task_of(recipe.task).supports_distillation:
        able = ", ".join(name for name in TASKS if task_of(name).supports_distillation)
        raise UserError(f"distil.teacher: task = '{recipe.task}' cannot be learnt from a teacher; possible: {able}")
    task = build(recipe, loaded.vocabulary, loaded.network)
    if recipe.distil.teacher:
        folder, device = find_model(recipe.distil.teacher).folder, choose_device(recipe.train.device)
        task.teacher = read_teacher(folder, recipe.distil, loaded.network, loaded.vocabulary, device)
    return task


def _network(recipe: Recipe, run: Path | None) -> Loaded:
    """A new network with a learnt vocabulary, or the weights that `model.from` names; a run has its own by now."""
    canonical(recipe.task)
    choose_device(recipe.train.device)
    newest = checkpoint.newest(run)[0] if run else None
    if "from" in recipe.model:
        return _load_weights(recipe, newest)
    require_support(recipe.task, recipe.model["family"])
    models.outline(recipe.model, joint=recipe.tokenizer.joint)  # what cannot be built is refused before it is learnt
    vocabulary = Vocabulary.load(newest) if newest else _vocabulary(recipe)
    sizes = models.sizes(recipe.model["family"], vocabulary.source.size, vocabulary.target.size)
    torch.manual_seed(recipe.seed)
    return task_of(recipe.task).attach_head(
        Loaded(models.build(recipe.model, **sizes), vocabulary, _chosen(recipe.decode), {}), recipe
    )


def _vocabulary(recipe: Recipe) -> Vocabulary:
    """That of the folder that the recipe names, else a learnt one."""
    folder = recipe.tokenizer.folder
    return Vocabulary.load(find_model(folder).folder) if folder else task_of(recipe.task).train_tokenizer(recipe)


def _load_weights(recipe: Recipe, newest: Path | None) -> Loaded:
    """The folder that `model.from` names, or what became of it; the recipe may say how it decodes, not what it is."""
    adapting, folder = AdapterOptions.of(recipe.model), newest or find_model(recipe.model["from"]).folder
    loaded = folders.as_saved(folders.load(folder, merged=not (adapting and newest)))
    family = models.family_of(loaded.network)
    if recipe.model.get("family", family) != family:
        raise UserError(
            f"model.family = '{recipe.model['family']}', but model.from = '{recipe.model['from']}' is a {family}: "
            "remove model.family"
        )
    require_support(recipe.task, family)
    if "depth" in recipe.model and not newest:
        shorten(loaded.network, recipe.model["depth"])
    base = (loaded.base if newest else folders.base_at(folder, loaded)) if adapting else None
    torch.manual_seed(recipe.seed)
    loaded = task_of(recipe.task).attach_head(loaded._replace(pooling=supported_pooling(folder)), recipe)
    if adapting:
        adapt(loaded.network, adapting)
        for part in getattr(loaded.network, "trainable_modules", ()):
            part.requires_grad_(True)
    return loaded._replace(generation=loaded.generation | _chosen(recipe.decode), base=base)


def _with_weights_found(recipe: Recipe, display: Display) -> Recipe:
    """Each folder with a model as the one that it means here and now, wherever the run is gone on with."""

    def place(name: str) -> str:
        if not name:
            return ""
        found = find_model(name)
        for reason in found.refused:
            display.warn(f"{reason}; {found.folder.name} is used instead")
        return str(found.folder.resolve())

    weights = {"from": place(recipe.model["from"])} if "from" in recipe.model else {}
    tokenizer = replace(recipe.tokenizer, folder=place(recipe.tokenizer.folder))
    distil = replace(recipe.distil, teacher=place(recipe.distil.teacher))
    return replace(recipe, model=recipe.model | weights, tokenizer=tokenizer, distil=distil)


def _chosen(options: DecodeOptions) -> dict[str, Any]:
    """What the recipe says of decoding beyond the defaults; to say a temperature is to ask for sampling."""
    default = DecodeOptions()
    names = [name for name in options.__dataclass_fields__ if getattr(options, name) != getattr(default, name)]
    found = {name: getattr(options, name) for name in names if name != "seed"}
    return found | ({"do_sample": True} if "temperature" in found else {})
