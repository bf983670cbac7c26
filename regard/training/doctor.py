"""`regard doctor RECIPE`: the problems of a training run, before it starts.

recipe ─▶ data (counts, lengths, coverage, leaks) ─▶ network (size, memory, time) ─▶ machine (disk, memory, threads)
"""

import os
import shutil
from pathlib import Path

import torch
from torch import nn

from regard.config.recipe import Recipe, TrainOptions
from regard.errors import UserError
from regard.progress import in_bytes
from regard.runtime.machine import choose_device, choose_threads, processor, tune_malloc
from regard.tasks.base import SPLITS
from regard.tasks.inspection import Findings
from regard.training.build import prepare_network, prepare_task
from regard.training.display import Display
from regard.training.distributed import group
from regard.training.length import short_run
from regard.training.loop import Loop, RunOutput
from regard.training.objective import TrainingTask
from regard.training.profile import Cost, measure
from regard.training.run_folder import refuse_existing

STEPS = 5


def examine(recipe: Recipe) -> Findings:
    """Inspect the recipe's data, take a few real steps, and report problems."""
    findings = Findings()
    try:
        refuse_existing(Path(recipe.output))
    except UserError as error:
        findings.errors.append(str(error))
    loaded = prepare_network(recipe)
    task = prepare_task(recipe, loaded)
    splits = {name: split for name in SPLITS if (split := task.dataset(name)) is not None}
    task.inspect(splits, findings)
    _cost(_measure(loaded.network, task, recipe), task.batches_per_epoch, recipe, findings)
    return findings


def _measure(network: nn.Module, task: TrainingTask, recipe: Recipe) -> Cost:
    """A few steps on the device, with the threads and the precision of the run."""
    tune_malloc()
    torch.set_num_threads(choose_threads(recipe.train.threads))
    device = choose_device(recipe.train.device)
    with group(device) as alone:
        output = RunOutput(Path(recipe.output), lambda folder: None, Display(quiet=True))
        return measure(Loop(network.to(device), task, recipe, output, alone), task, STEPS)


def _cost(cost: Cost, batches_per_epoch: int, recipe: Recipe, findings: Findings) -> None:
    """Size, memory, time and disk space of the run, compared with the machine."""
    options = recipe.train
    epochs_per_step = options.gradient_accumulation_steps / batches_per_epoch
    by_epochs = max(options.min_steps, round(options.epochs / epochs_per_step)) if options.epochs else 0
    steps = options.max_steps or by_epochs or round(60 * options.minutes / cost.seconds)
    averaged = options.ema_decay > 0
    memory = cost.memory_bytes(averaged)
    machine_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    checkpoint_bytes = cost.checkpoint_bytes(averaged, adapted=bool(recipe.model.get("lora_rank")))
    disk = checkpoint_bytes * _max_checkpoints(options, steps, scored=bool(recipe.data.validation))
    needed = disk + checkpoint_bytes  # while one is written, those before it are still there
    output = Path(recipe.output).absolute()
    free = shutil.disk_usage(next(folder for folder in (output, *output.parents) if folder.is_dir())).free
    findings.facts["network"] = {
        "parameters": cost.parameters,
        "weight_bytes": cost.weight_bytes,
        "gradient_bytes": cost.trained_bytes,
        "optimizer_bytes": cost.state_bytes(averaged) - cost.weight_bytes,
        "activation_bytes": cost.activation_bytes,
        "memory_bytes": memory,
        "machine_memory_bytes": machine_memory,
        "checkpoints_bytes": disk,
        "free_disk_bytes": free,
    }
    findings.facts["machine"] = processor()
    findings.facts["time"] = {
        "threads": torch.get_num_threads(),
        "step_seconds": cost.seconds,
        "targets_per_second": round(cost.targets / cost.seconds),
        "steps": steps,
        "epochs": steps * epochs_per_step,
        "training_seconds": steps * cost.seconds,
    }
    if memory > 0.8 * machine_memory:
        findings.errors.append(
            f"the run needs {in_bytes(memory)} of memory, the machine has {in_bytes(machine_memory)}: lower "
            "train.batch_size or train.batch_tokens"
        )
    if needed > free:
        findings.errors.append(
            f"checkpoints need {in_bytes(needed)}, {in_bytes(free)} are free at {recipe.output}: lower train.keep"
        )
    if warning := short_run(steps, options):
        findings.warnings.append(warning)
    if options.eval_steps > steps:
        findings.warnings.append(
            f"train.eval_steps = {options.eval_steps} exceeds the run's {steps} steps: evaluated only at the end"
        )


def _max_checkpoints(options: TrainOptions, steps: int, scored: bool) -> int:
    """The largest number of checkpoints in the run folder: those that are kept, and the best."""
    written = {*range(options.save_steps, steps + 1, options.save_steps), steps}
    if scored:  # each score may be the best so far
        written |= {*range(options.eval_steps, steps + 1, options.eval_steps)}
    return min(len(written), options.keep + scored)
