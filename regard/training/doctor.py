"""`regard doctor RECIPE`: what an hour of training would have found out, before it starts.

recipe ─▶ data (counts, lengths, coverage, leaks) ─▶ network (size, memory, time) ─▶ machine (disk, memory, threads)
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.cli.output import in_bytes
from regard.config.recipe import Recipe, TrainOptions
from regard.data.duplicates import digests, duplicates
from regard.errors import UserError
from regard.models.heads.sequence import Classifier
from regard.runtime.device import choose_device
from regard.runtime.machine import choose_threads, processor, tune_malloc
from regard.tasks.answer.doctor import questions
from regard.tasks.answer.task import Answer
from regard.tasks.classify.doctor import labels
from regard.tasks.fill.task import Fill
from regard.tasks.generate.task import Generate
from regard.tasks.text_doctor import hidden_words, running_text
from regard.tasks.translate.dataset import PairDataset
from regard.text.vocabulary import Vocabulary
from regard.training.build import prepare_network, prepare_task
from regard.training.display import Display
from regard.training.distributed import group
from regard.training.loop import Loop, RunOutput
from regard.training.objective import TrainingTask
from regard.training.profile import Cost, measure
from regard.training.run_folder import refuse_existing

PARTS = ("train", "validation", "test")

SHOWN = 3  # leaked samples

READ = 2000  # samples whose coverage is measured

STEPS = 5


@dataclass
class Findings:
    """Tables of facts, and lines of what forbids (`errors`) or endangers (`warnings`) the run."""

    facts: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def examine(recipe: Recipe) -> Findings:
    """Read the recipe's data, take a few real steps, and say what stands in the way."""
    findings = Findings()
    try:
        refuse_existing(Path(recipe.output))
    except UserError as error:
        findings.errors.append(str(error))
    loaded = prepare_network(recipe)
    (network, vocabulary, *_), task = loaded, prepare_task(recipe, loaded)
    parts: dict[str, Any] = {part: found for part in PARTS if (found := task.dataset(part)) is not None}
    if isinstance(task, Generate):
        running_text(parts, task, findings)
    elif isinstance(task, Fill):
        hidden_words(parts, task, findings)
    elif isinstance(task, Answer):
        _samples(parts, recipe, findings, sizes=1)
        questions(parts, findings)
    else:
        _samples(parts, recipe, findings)
        _lengths(parts, findings)
        if all(isinstance(part, PairDataset) for part in parts.values()):
            _look_into(parts, network, vocabulary, findings)
    _cost(_measure(network, task, recipe), task.batches_per_epoch, recipe, findings)
    return findings


def _look_into(parts: dict[str, PairDataset], network: nn.Module, vocabulary: Vocabulary, findings: Findings) -> None:
    """What there is to say of texts: labels, coverage, and those that are in several parts."""
    called = isinstance(network, Classifier)
    if called:
        labels(parts, network, findings)
    _coverage(parts, vocabulary, ("source",) if called else ("source", "target"), findings)
    _leaks(parts, findings)


def _measure(network: nn.Module, task: TrainingTask, recipe: Recipe) -> Cost:
    """A few steps on the device, with the threads and the precision that training would take."""
    tune_malloc()
    torch.set_num_threads(choose_threads(recipe.train.threads))
    device = choose_device(recipe.train.device)
    with group(device) as alone:
        output = RunOutput(Path(recipe.output), _write_nothing, Display(quiet=True))
        return measure(Loop(network.to(device), task, recipe, output, alone), task, STEPS)


def _write_nothing(folder: Path) -> None:
    """The doctor leaves no model behind."""


def _samples(parts: dict[str, PairDataset], recipe: Recipe, findings: Findings, sizes: int = 0) -> None:
    """How many were read, kept and skipped, and why; the first notes of a report may say sizes alone."""
    table = {}
    for part, corpus in parts.items():
        report = corpus.report
        findings.warnings += [f"{part}: {note}" for note in report.notes[sizes:]]
        skipped = {reason: skip.count for reason, skip in report.skipped.items()}
        table[part] = {"read": report.read, "kept": report.kept, "skipped": sum(skipped.values()), **skipped}
        if report.kept < 0.95 * report.read:
            findings.warnings.append(f"{part}: {report}; data.max_length is {recipe.data.max_length}")
    findings.facts["samples"] = table
    if "validation" not in parts:
        findings.warnings.append(
            "no validation part: no best checkpoint can be chosen; set data.validation, such as 0.02"
        )


def _lengths(parts: dict[str, PairDataset], findings: Findings) -> None:
    """Tokens a sample on each side."""
    table = {}
    for part, corpus in parts.items():
        for side, lengths in (("source", corpus.source_lengths), ("target", corpus.target_lengths)):
            if not len(lengths):
                continue
            low, middle, most, nearly, high = np.percentile(lengths, (0, 50, 95, 99, 100)).tolist()
            table[f"{part} {side}"] = {"min": low, "median": middle, "95%": most, "99%": nearly, "max": high}
    findings.facts["sample_tokens"] = table


def _coverage(parts: dict[str, PairDataset], vocabulary: Vocabulary, sides: Sequence[str], findings: Findings) -> None:
    """How well the tokenizer fits each part; it was made from train alone."""
    table: dict[str, dict[str, float]] = {}
    for part, corpus in parts.items():
        for number, side in enumerate(sides):
            texts = (corpus.text(index)[number] for index in range(min(READ, len(corpus))))
            found = getattr(vocabulary, side).coverage(texts)
            table[f"{part} {side}"] = {
                "vocabulary": getattr(vocabulary, side).size,
                "tokens_per_word": round(found.tokens_per_word, 3),
                "unknown_percent": round(100 * found.unknown_rate, 3),
            }
            if found.unknown_rate > 0.01:
                findings.warnings.append(
                    f"{part}: {found.unknown_rate:.1%} of the {side} tokens are unknown; "
                    'take subwords (tokenizer.kind = "bpe") or a larger tokenizer.vocab_size'
                )
            trained = table.get(f"train {side}", {}).get("tokens_per_word", 0)
            if trained and found.tokens_per_word > 1.5 * trained:
                findings.warnings.append(
                    f"{part}: {found.tokens_per_word:.2f} tokens a {side} word, in train {trained:.2f}: one language?"
                )
    findings.facts["tokenizer"] = table


def _leaks(parts: dict[str, PairDataset], findings: Findings) -> None:
    """Samples of validation and test that train has too."""
    table: dict[str, dict[str, int]] = {}
    for what, joined in (("same_source", False), ("same_pair", True)):
        hashes = {
            split: digests("\t".join(text) if joined else text[0] for text in map(dataset.text, range(len(dataset))))
            for split, dataset in parts.items()
        }
        for split in [split for split in parts if split != "train"]:
            leaked = np.flatnonzero(duplicates(hashes["train"], hashes[split]))
            table.setdefault(split, {})[what] = len(leaked)
            if joined and len(leaked):
                examples = "; ".join(" → ".join(parts[split].text(int(index))) for index in leaked[:SHOWN])
                findings.warnings.append(
                    f"{split}: {len(leaked)} of {len(hashes[split])} samples are in train too, so its scores flatter: "
                    f"{examples}"
                )
    findings.facts["also_in_train"] = table


def _cost(cost: Cost, batches_per_epoch: int, recipe: Recipe, findings: Findings) -> None:
    """Size, memory, time and disk of the whole run, against what the machine has."""
    options = recipe.train
    a_step = options.gradient_accumulation_steps / batches_per_epoch  # epochs
    steps = options.max_steps or round(options.epochs / a_step) or round(60 * options.minutes / cost.seconds)
    averaged = options.ema_decay > 0
    memory, has = cost.memory_bytes(averaged), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = cost.checkpoint_bytes(averaged, adapted=bool(recipe.model.get("lora_rank")))
    disk = each * _most_checkpoints(options, steps, scored=bool(recipe.data.validation))
    needed = disk + each  # while one is written, those before it are still there
    free = shutil.disk_usage(_existing(Path(recipe.output))).free
    findings.facts["network"] = {
        "parameters": cost.parameters,
        "weight_bytes": cost.weight_bytes,
        "gradient_bytes": cost.trained_bytes,
        "optimizer_bytes": cost.state_bytes(averaged) - cost.weight_bytes,
        "activation_bytes": cost.activation_bytes,
        "memory_bytes": memory,
        "machine_memory_bytes": has,
        "checkpoints_bytes": disk,
        "free_disk_bytes": free,
    }
    findings.facts["machine"] = processor()
    findings.facts["time"] = {
        "threads": torch.get_num_threads(),
        "step_seconds": cost.seconds,
        "targets_per_second": round(cost.targets / cost.seconds),
        "steps": steps,
        "epochs": steps * a_step,
        "training_seconds": steps * cost.seconds,
    }
    if memory > 0.8 * has:
        findings.errors.append(
            f"the run needs {in_bytes(memory)} of memory, the machine has {in_bytes(has)}: smaller batches?"
        )
    if needed > free:
        findings.errors.append(
            f"checkpoints need {in_bytes(needed)}, {in_bytes(free)} are free at {recipe.output}: lower train.keep"
        )
    if options.eval_steps > steps:
        findings.warnings.append(
            f"train.eval_steps = {options.eval_steps} is more than the run's {steps} steps: scored only at its end"
        )


def _most_checkpoints(options: TrainOptions, steps: int, scored: bool) -> int:
    """How many will lie in the run's folder: those that are kept and the best, if so many are written at all."""
    written = {*range(options.save_steps, steps + 1, options.save_steps), steps}
    if scored:  # each score may be the best so far
        written |= {*range(options.eval_steps, steps + 1, options.eval_steps)}
    return min(len(written), options.keep + scored)


def _existing(path: Path) -> Path:
    """The nearest folder above that is there: what the run will be written into."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())
