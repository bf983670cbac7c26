"""`regard doctor RECIPE`: the problems of a training run, before it starts.

recipe ─▶ data (counts, lengths, coverage, leaks) ─▶ network (size, memory, time) ─▶ machine (disk, memory, threads)
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.recipe import Recipe, TrainOptions
from regard.errors import UserError
from regard.layers.lora import adapters
from regard.layers.pytree import to_device
from regard.progress import in_bytes
from regard.runtime.machine import choose_device, choose_threads, processor, tune_malloc
from regard.tasks.base import SPLITS
from regard.tasks.inspection import Findings
from regard.training.build import prepare_network, prepare_task
from regard.training.display import Display
from regard.training.distributed import group
from regard.training.length import short_run
from regard.training.loop import Loop, RunOutput
from regard.training.objective import BatchSource
from regard.training.run_folder import refuse_existing

WARMUP, STEPS = 2, 5  # steps before the measured ones, and these
SEARCHED = 256  # batches among which the largest is searched: a bucket of similar lengths or more


def examine(recipe: Recipe) -> Findings:
    """Inspect the recipe's data, take a few real steps on its device and with its precision, and report problems."""
    findings = Findings()
    try:
        refuse_existing(Path(recipe.output))
    except UserError as error:
        findings.errors.append(str(error))
    loaded = prepare_network(recipe)
    task = prepare_task(recipe, loaded)
    splits = {name: split for name in SPLITS if (split := task.dataset(name)) is not None}
    task.inspect(splits, findings)
    tune_malloc()
    torch.set_num_threads(choose_threads(recipe.train.threads))
    device = choose_device(recipe.train.device)
    with group(device) as alone:
        output = RunOutput(Path(recipe.output), lambda folder: None, Display(quiet=True))
        cost = measure(Loop(loaded.network.to(device), task, recipe, output, alone), task)
    _report(cost, task.batches_per_epoch, recipe, findings)
    return findings


@dataclass(frozen=True)
class Cost:
    """Of a run: its bytes by component, and the median seconds and the targets of a step."""

    parameters: int
    weight_bytes: int
    gradient_bytes: int  # of the weights that are not frozen
    optimizer_bytes: int  # AdamW's two moments, and the EMA
    activation_bytes: int
    memory_bytes: int  # the peak
    checkpoint_bytes: int  # the model, or its adapter alone, and the state to resume from
    seconds: float
    targets: float


def measure(loop: Loop, source: BatchSource, steps: int = STEPS) -> Cost:
    """Take real steps with a learning rate of 0."""
    loop.network.train()
    batches = source.batches(0, 0, 1)
    count = loop.objective.num_targets
    seconds = []
    targets = 0
    with loop.tuned():
        for step in range(WARMUP + steps):
            taken = list(islice(batches, loop.options.gradient_accumulation_steps))
            start = time.perf_counter()
            total = sum(map(count, taken))
            for index, batch in enumerate(taken):
                loop.gradients.add(to_device(batch, loop.group.device), index, total).item()  # waits for the device
            loop.optimizer.update(0.0)
            loop.optimizer.zero_grad()
            if step >= WARMUP:
                seconds.append(time.perf_counter() - start)
                targets += total
    first = list(islice(source.batches(0, 0, 1), min(SEARCHED, source.batches_per_epoch)))
    activations = 0
    for batch in (max(first, key=count), max(first, key=_length)):  # logits peak in one, attention in the other
        with saved_activations(loop.network) as saved, loop.autocast:
            loop.objective.loss(loop.network, to_device(batch, loop.group.device))
        activations = max(activations, sum(saved.values()))
    weights = sum(parameter.nbytes for parameter in loop.network.parameters())
    trained = sum(parameter.nbytes for parameter in loop.network.parameters() if parameter.requires_grad)
    optimizer = trained * (3 if loop.options.ema_decay else 2)
    return Cost(
        parameters=sum(parameter.numel() for parameter in loop.network.parameters()),
        weight_bytes=weights,
        gradient_bytes=trained,
        optimizer_bytes=optimizer,
        activation_bytes=activations,
        memory_bytes=weights + optimizer + loop.workers * trained + activations,  # gradients for each micro-batch
        checkpoint_bytes=(trained if adapters(loop.network) else weights) + trained + optimizer,
        seconds=median(seconds),
        targets=targets / steps,
    )


def _length(batch: Any) -> int:
    """The length of the longest row in nested tuples of tensors."""
    if isinstance(batch, Tensor):
        return batch.shape[1] if batch.ndim > 1 else 0
    return max(map(_length, batch), default=0) if isinstance(batch, tuple) else 0


@contextmanager
def saved_activations(network: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes by storage of all that autograd saves for the backward pass, without the weights themselves."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def _report(cost: Cost, batches_per_epoch: int, recipe: Recipe, findings: Findings) -> None:
    """Size, memory, time and disk space of the run, compared with the machine."""
    options = recipe.train
    epochs_per_step = options.gradient_accumulation_steps / batches_per_epoch
    by_epochs = max(options.min_steps, round(options.epochs / epochs_per_step)) if options.epochs else 0
    steps = options.max_steps or by_epochs or round(60 * options.minutes / cost.seconds)
    checkpoints = _max_checkpoints(options, steps, scored=bool(recipe.data.validation))
    needed = (checkpoints + 1) * cost.checkpoint_bytes  # while one is written, those before it are still there
    output = Path(recipe.output).absolute()
    free = shutil.disk_usage(next(folder for folder in (output, *output.parents) if folder.is_dir())).free
    machine_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    findings.facts["network"] = {
        "parameters": cost.parameters,
        "weight_bytes": cost.weight_bytes,
        "gradient_bytes": cost.gradient_bytes,
        "optimizer_bytes": cost.optimizer_bytes,
        "activation_bytes": cost.activation_bytes,
        "memory_bytes": cost.memory_bytes,
        "machine_memory_bytes": machine_memory,
        "checkpoints_bytes": checkpoints * cost.checkpoint_bytes,
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
    if cost.memory_bytes > 0.8 * machine_memory:
        memory = f"{in_bytes(cost.memory_bytes)} of memory, the machine has {in_bytes(machine_memory)}"
        findings.errors.append(f"the run needs {memory}: lower train.batch_size or train.batch_tokens")
    if needed > free:
        space = f"{in_bytes(needed)}, {in_bytes(free)} are free at {recipe.output}"
        findings.errors.append(f"checkpoints need {space}: lower train.keep")
    if warning := short_run(steps, options, recipe.task):
        findings.warnings.append(warning)
    if options.eval_steps > steps:
        problem = f"train.eval_steps = {options.eval_steps} exceeds the run's {steps} steps"
        findings.warnings.append(f"{problem}: evaluated only at the end")


def _max_checkpoints(options: TrainOptions, steps: int, scored: bool) -> int:
    """The largest number of checkpoints in the run folder: those that are kept, and the best."""
    written = {*range(options.save_steps, steps + 1, options.save_steps), steps}
    if scored:  # each score may be the best so far
        written |= {*range(options.eval_steps, steps + 1, options.eval_steps)}
    return min(len(written), options.keep + scored)
