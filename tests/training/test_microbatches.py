"""Micro-batches in two threads have the loss and gradients of their batch, for every task, reproducibly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import Network

import tests.tasks.answer.test_task as test_answering
import tests.tasks.classify.test_task as test_classify
import tests.tasks.fill.test_task as test_masked
import tests.tasks.tag.test_task as test_tagging
from regard.config.recipe import Recipe, load_recipe
from regard.models.heads.mlm import MaskedLM
from regard.tasks.registry import build
from regard.training.build import prepare_network, prepare_task, resume, start
from regard.training.microbatches import Gradients, choose_workers
from tests.test_model import folder

BERT = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 48\ndropout = {dropout}'
DATES = """
task = "translate"
[data]
generate = "dates"
train = 60
[tokenizer]
kind = "characters"
[model]
family = "{family}"
width = 12
{more}
dropout = {dropout}
[train]
batch_size = 9
max_steps = 3
"""
TEXT = """
task = "generate"
[data]
train = "text.txt"
validation = 0.2
[tokenizer]
kind = "characters"
[model]
family = "gpt"
preset = "tiny"
width = 24
max_positions = 16
dropout = {dropout}
[train]
batch_size = 7
max_steps = 3
"""


def dates(place: Path, dropout: float, family: str = "transformer", more: str = "heads = 3") -> Recipe:
    (place / "dates.toml").write_text(DATES.format(family=family, more=more, dropout=dropout))
    return load_recipe(place / "dates.toml", [f"output={place / 'run'}"])


def text(place: Path, dropout: float) -> Recipe:
    (place / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    (place / "text.toml").write_text(TEXT.format(dropout=dropout))
    return load_recipe(place / "text.toml", [f"output={place / 'run'}"])


def classified(place: Path, dropout: float, *overrides: str, family: str = "bert") -> Recipe:
    model = BERT.format(dropout=dropout).replace("bert", family)
    return test_classify.recipe(test_classify.lay_out(place), model, 3, *overrides)


RECIPES: dict[str, Any] = {
    "translate": dates,
    "convolved": lambda place, dropout: dates(place, dropout, "convs2s", "depth = 2"),
    "generate": text,
    "classify": classified,
    "weighted": lambda place, dropout: classified(place, dropout, "train.class_weights=balanced"),
    "auxiliary": lambda place, dropout: classified(place, dropout, "train.lm_loss_weight=0.5", family="gpt"),
    "tag": lambda place, dropout: test_tagging.made(place, model=BERT.format(dropout=dropout)),
    "answer": lambda place, dropout: test_answering.recipe(
        test_answering.lay_out(place, silent=True), BERT.format(dropout=dropout)
    ),
    "fill": lambda place, dropout: test_masked.recipe(
        test_masked.lay_out(place), model=BERT.format(dropout=dropout), pairs="none"
    ),
    "pairs": lambda place, dropout: test_masked.recipe(test_masked.lay_out(place), model=BERT.format(dropout=dropout)),
}


def prepared(recipe: Recipe) -> tuple[nn.Module, Any]:
    loaded = prepare_network(recipe)
    return loaded.network, build(recipe, loaded.processor, loaded.network)


def found(network: nn.Module, task: Any, pieces: int, number: int = 3) -> tuple[Tensor, list[Tensor]]:
    """The loss of the first batch, and all gradients."""
    network.train().zero_grad(set_to_none=True)
    batch = next(task.batches(0, 0, 1))
    loss = Gradients(network, task, 1, torch.autocast("cpu", enabled=False), pieces).add(batch, number, 5)
    return loss, [torch.zeros(()) if each.grad is None else each.grad.clone() for each in network.parameters()]


@pytest.mark.parametrize("name", RECIPES)
def test_micro_batches_sum_to_the_batch(name: str, tmp_path: Path) -> None:
    network, task = prepared(RECIPES[name](tmp_path, 0.0))
    network.double()  # only the loss itself is of single precision then
    loss, whole = found(network, task, 1)
    most = max(float(each.abs().max()) for each in whole)
    for pieces in (2, 3):
        again, parts = found(network, task, pieces)
        assert float(again) == pytest.approx(float(loss), rel=1e-6)
        for one, two in zip(whole, parts, strict=True):
            assert float((one - two).abs().max()) <= 1e-6 * most


@pytest.mark.parametrize("name", RECIPES)
def test_each_sample_is_in_one_piece(name: str, tmp_path: Path) -> None:
    _, task = prepared(RECIPES[name](tmp_path, 0.0))
    batch = next(task.batches(0, 0, 1))
    pieces = task.split(batch, 2)
    assert len(pieces) == 2 and task.split(batch, 1)[0] is batch
    assert sorted(torch.cat([piece.indices for piece in pieces]).tolist()) == sorted(batch.indices.tolist())
    assert sum(map(task.num_targets, pieces)) == task.num_targets(batch)
    alone = task.split(pieces[0], len(batch.indices) + 3)
    assert len(alone) == len(pieces[0].indices)


@pytest.mark.parametrize("name", ["translate", "pairs"])
def test_dropout_depends_on_the_batch_alone(name: str, tmp_path: Path) -> None:
    network, task = prepared(RECIPES[name](tmp_path, 0.3))
    loss, gradients = found(network, task, 2)
    torch.rand(7)
    again, same = found(network, task, 2)
    assert torch.equal(loss, again) and all(map(torch.equal, gradients, same))
    assert float(found(network, task, 2, number=4)[0]) != float(loss)
    assert float(found(network, task, 1)[0]) != float(loss)


def test_micro_batches_have_different_dropout(tmp_path: Path) -> None:
    """Both pieces are the same sample here; numbers that were drawn alike would give both the same loss."""
    network, task = prepared(RECIPES["generate"](tmp_path, 0.3))
    batch = next(task.batches(0, 0, 1))
    gradients = Gradients(network.train(), task, 1, torch.autocast("cpu", enabled=False), 2)
    first, second = gradients._backward(batch, 3, 5)[0], gradients._separate(batch, "3 1", 5)[0]
    assert float(first) != float(second)


@pytest.mark.parametrize("name", ["translate", "pairs"])
def test_two_threads_resume_bit_identically(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name](tmp_path, 0.3)
    train = replace(recipe.train, save_steps=2, threads=2, schedule="constant", warmup_steps=1)
    for run, steps in (("whole", 6), ("run", 4)):
        start(replace(recipe, output=str(tmp_path / run), train=replace(train, max_steps=steps)), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=6"])
    for name in ("model.safetensors", "training.safetensors"):
        one, two = (tmp_path / run / "checkpoint-6" / name for run in ("whole", "run"))
        assert one.read_bytes() == two.read_bytes(), name


def test_which_batches_are_split(tmp_path: Path) -> None:
    """Not with one thread, not on another device, not what steps from token to token."""
    network, cpu = prepared(dates(tmp_path, 0.0))[0], torch.device("cpu")
    recurrent = prepared(dates(tmp_path, 0.0, "seq2seq", ""))[0]
    assert choose_workers(network, cpu) == 1
    torch.set_num_threads(2)
    assert choose_workers(network, cpu) == 2
    assert choose_workers(network, torch.device("cuda")) == 1
    assert choose_workers(recurrent, cpu) == 1
    assert choose_workers(Network(), cpu) == 1  # torch's own dropout draws for all threads alike
    torch.set_num_threads(3)
    assert choose_workers(network, cpu) == 1


def test_one_sample_has_all_threads(tmp_path: Path) -> None:
    recipe = text(tmp_path, 0.0)
    network, task = prepared(replace(recipe, train=replace(recipe.train, batch_size=1)))
    seen = []
    network.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    found(network, task, 2)
    assert seen == [4] and torch.get_num_threads() == 2


def test_a_teacher_gets_the_full_batch(tmp_path: Path) -> None:
    """What it adds is a mean over the batch, not a sum."""
    place = folder(tmp_path, MaskedLM)
    (tmp_path / "fill.toml").write_text(
        f'task = "fill"\noutput = "{tmp_path}/run"\n[data]\ntrain = "text.txt"\nmax_length = 12\n'
        f'[model]\nfrom = "{place}"\n[distil]\nteacher = "{place}"\n[train]\nbatch_size = 4\nmax_steps = 1\n'
    )
    (tmp_path / "text.txt").write_text("the spaces and quotes\n" * 40)
    recipe = load_recipe(tmp_path / "fill.toml")
    task = prepare_task(recipe, prepare_network(recipe))
    assert task.indivisible
