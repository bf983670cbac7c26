"""From a recipe to a trained run: processor, data, network and training loop."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regard.config.recipe import DecodeOptions, Recipe
from regard.errors import UserError, nearest
from regard.interop import folder as folders
from regard.interop.folder import Loaded
from regard.interop.generation_config import MAX_BEAMS
from regard.interop.model_card import Training
from regard.interop.processors import read_processor
from regard.interop.sentence_transformers import supported_pooling, write_pooling
from regard.layers.dropout import set_dropout
from regard.layers.encoder import shorten
from regard.layers.lora import AdapterOptions, adapt
from regard.models import registry as models
from regard.models.elmo import Elmo
from regard.models.heads.mlm import MaskedLM
from regard.runtime.machine import choose_device
from regard.tasks.base import Task
from regard.tasks.distillation import read_teacher
from regard.tasks.registry import TASKS, build, require_support, task_of
from regard.training import checkpoint
from regard.training.display import Display
from regard.training.distributed import rank
from regard.training.layerwise import apply_freezing
from regard.training.loop import Outcome, RunOutput, train
from regard.training.metrics_log import validation_metrics
from regard.training.run_folder import find_model, lock, open_run, refuse_existing, start_run, write_recipe


def start(recipe: Recipe, quiet: bool = False) -> Outcome:
    """Train a new run. Errors in recipe or data are raised before its folder is made."""
    refuse_existing(Path(recipe.output))
    display = Display(quiet)
    recipe = _resolve_folders(recipe, display)
    loaded, task = _prepare(recipe, None, display)
    run = start_run(recipe)
    with lock(run):
        return _train(loaded, task, recipe, run, display)


def resume(run: Path, quiet: bool = False, overrides: Sequence[str] = ()) -> Outcome:
    """Resume a run from its newest complete checkpoint, or from the start if there is none."""
    open_run(run)
    with lock(run):
        recipe = open_run(run, overrides)
        display = Display(quiet)
        if rank() == 0:
            checkpoint.sweep(run)
        loaded, task = _prepare(recipe, run, display)
        if overrides:
            write_recipe(run, recipe)
        return _train(loaded, task, recipe, run, display)


def _train(loaded: Loaded, task: Task, recipe: Recipe, run: Path, display: Display) -> Outcome:
    """Train, and warn if the result is not better than a constant prediction."""

    def write_model(folder: Path) -> None:
        network, processor, generation, config, base, pooling = loaded
        training = Training(recipe, *validation_metrics(folder))
        folders.save(folder, network, processor, generation, config, base, training)
        if pooling and isinstance(network, MaskedLM):  # which embeds texts as its body does
            write_pooling(folder, pooling, network.config.width)

    outcome = train(loaded.network, task, recipe, RunOutput(run, write_model, display))
    best = outcome.progress.best_score
    if outcome.status != "interrupted" and best is not None and (warning := task.score_warning(best)):
        display.warn(warning)
    return outcome


def _prepare(recipe: Recipe, run: Path | None, display: Display) -> tuple[Loaded, Task]:
    """The network and its task, described on the terminal."""
    loaded = prepare_network(recipe, run)
    task = prepare_task(recipe, loaded)
    for split, report in task.reports.items():
        display.note(f"{split}: {report}")
    parameters = list(loaded.network.parameters())
    size = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    trainable = "" if trained == size else f", {trained:,} of them trained"
    origin = f", from {recipe.model['from']}" if "from" in recipe.model else ""
    teacher = f", distilled from {recipe.distil.teacher}" if recipe.distil.teacher else ""
    display.note(f"{models.family_of(loaded.network)}, {size:,} parameters{trainable}{origin}{teacher}")
    return loaded, task


def prepare_network(recipe: Recipe, run: Path | None = None) -> Loaded:
    """The network of the recipe with its dropout and its frozen weights; on resume, that of the checkpoint."""
    choose_device(recipe.train.device)
    newest = checkpoint.newest(run)[0] if run else None
    loaded = _load_weights(recipe, newest) if "from" in recipe.model else _new_network(recipe, newest)
    if recipe.train.dropout >= 0:
        set_dropout(loaded.network, recipe.train.dropout)
    apply_freezing(loaded.network, recipe.train)
    return loaded


def prepare_task(recipe: Recipe, loaded: Loaded) -> Task:
    """The recipe's task with its data, for this network, and its teacher if it has one."""
    if recipe.distil.teacher and not task_of(recipe.task).supports_distillation:
        possible = ", ".join(name for name in TASKS if task_of(name).supports_distillation)
        raise UserError(f"distil.teacher: task = '{recipe.task}' does not support distillation; possible: {possible}")
    task = build(recipe, loaded.processor, loaded.network)
    if recipe.distil.teacher:
        folder = find_model(recipe.distil.teacher).folder
        device = choose_device(recipe.train.device)
        task.teacher = read_teacher(folder, recipe.distil, loaded.network, loaded.processor, device)
    return task


def _new_network(recipe: Recipe, newest: Path | None) -> Loaded:
    """A new network, with the processor of the checkpoint, else of the folder in the recipe, else a trained one."""
    require_support(recipe.task, recipe.model["family"])
    models.outline(recipe.model, joint=recipe.tokenizer.joint)  # refuses an invalid model before tokenizer training
    task = task_of(recipe.task)
    named = recipe.tokenizer.folder
    folder = newest or (find_model(named).folder if named else None)
    input_type = models.FAMILIES[recipe.model["family"]].input_type
    processor = read_processor(folder, input_type) if folder else task.create_processor(recipe)
    vocabularies = (getattr(side, "size", 0) for side in (processor.source, processor.target))
    sizes = models.sizes(recipe.model["family"], *vocabularies)
    torch.manual_seed(recipe.seed)
    network = models.build(recipe.model, **sizes)
    if isinstance(network, Elmo):
        tokenizer = processor.target
        network.spell([tokenizer.name(token) for token in range(tokenizer.size)])
    return task.attach_head(Loaded(network, processor, _changed_options(recipe.decode), {}), recipe)


def _load_weights(recipe: Recipe, newest: Path | None) -> Loaded:
    """The model of `model.from`, or of the checkpoint; the recipe sets its decoding, not its architecture."""
    adapting = AdapterOptions.of(recipe.model)
    if (requested := recipe.model.get("family")) is not None and requested not in models.FAMILIES:
        raise UserError(f"model.family = '{requested}' is unknown{nearest(requested, models.FAMILIES)}")
    folder = newest or find_model(recipe.model["from"]).folder
    loaded = folders.as_saved(folders.load(folder, merged=not (adapting and newest)))
    family = models.family_of(loaded.network)
    if recipe.model.get("family", family) != family:
        raise UserError(
            f"model.family = '{recipe.model['family']}', but model.from = '{recipe.model['from']}' is a "
            f'{family} model: remove model.family, or train from scratch with model.from=""'
        )
    require_support(recipe.task, family)
    if "depth" in recipe.model and not newest:
        shorten(loaded.network, recipe.model["depth"])
    if recipe.model.get("new_head") and not newest:
        loaded = loaded._replace(network=getattr(loaded.network, "body", loaded.network))
    base = (loaded.base if newest else folders.base_at(folder, loaded)) if adapting else None
    torch.manual_seed(recipe.seed)
    loaded = task_of(recipe.task).attach_head(loaded._replace(pooling=supported_pooling(folder)), recipe)
    if adapting:
        adapt(loaded.network, adapting)
        for module in getattr(loaded.network, "trainable_modules", ()):
            module.requires_grad_(True)
    return loaded._replace(generation=loaded.generation | _changed_options(recipe.decode), base=base)


def _resolve_folders(recipe: Recipe, display: Display) -> Recipe:
    """Model folders as absolute paths, so that the run can be resumed from another directory."""

    def resolve(name: str) -> str:
        if not name:
            return ""
        model = find_model(name)
        for reason in model.refused:
            display.warn(f"{reason}; {model.folder.name} is used instead")
        return str(model.folder.resolve())

    weights = {"from": resolve(recipe.model["from"])} if "from" in recipe.model else {}
    tokenizer = replace(recipe.tokenizer, folder=resolve(recipe.tokenizer.folder))
    distil = replace(recipe.distil, teacher=resolve(recipe.distil.teacher))
    return replace(recipe, model=recipe.model | weights, tokenizer=tokenizer, distil=distil)


def _changed_options(options: DecodeOptions) -> dict[str, object]:
    """The decoding options that differ from the defaults; a temperature implies sampling."""
    default = DecodeOptions()
    for name in ("num_beams", "num_return_sequences"):
        if getattr(options, name) > MAX_BEAMS:
            raise UserError(f"decode.{name} = {getattr(options, name)}: a checkpoint holds at most {MAX_BEAMS}")
    names = [name for name in options.__dataclass_fields__ if getattr(options, name) != getattr(default, name)]
    changed: dict[str, object] = {name: getattr(options, name) for name in names if name != "seed"}
    return changed | ({"do_sample": True} if "temperature" in changed else {})
