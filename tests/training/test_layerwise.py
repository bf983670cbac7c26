"""Rates by depth, frozen layers and gradual unfreezing: what is trained, how fast, and the same after a stop."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard.config.recipe import TrainOptions
from regard.errors import UserError
from regard.interop.folder import load
from regard.models import registry as models
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.sequence import Classifier
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine
from regard.training.layerwise import GradualUnfreezing, layer_groups, lr_multipliers
from regard.training.optim import AdamW
from tests.tasks.classify.test_task import SCRATCH, base, lay_out, recipe

BERT = 'family = "bert"\npreset = "tiny"\nwidth = 24\ndepth = 3\nlimit = 32\ndropout = 0.1'
FILES = ("model.safetensors", "training.safetensors")


def network(family: str, **fields: Any) -> Any:
    return models.build({"family": family, "preset": "tiny", **fields}, **models.sizes(family, 53, 53))


def named(network: Any) -> list[set[str]]:
    names = {parameter: name for name, parameter in network.named_parameters()}
    return [{names[each] for each in level} for level in layer_groups(network)]


def trained(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The raw weights as the run stood there."""
    actual = load_file(run / f"checkpoint-{step}/training.safetensors")
    return {
        name.removeprefix("weights/"): tensor for name, tensor in actual.items() if not name.startswith("optimizer/")
    }


@pytest.mark.parametrize("family", ["bert", "gpt", "llama", "transformer"])
def test_every_weight_has_one_depth(family: str) -> None:
    plain = network(family)
    actual = named(plain)
    assert sum(map(len, actual)) == len(list(plain.parameters()))
    assert {name.split(".")[0] for name in actual[0]} <= {"embed", "source", "target"}
    sides = ["encoder", "decoder"] if family == "transformer" else ["encoder" if family == "bert" else "decoder"]
    blocks = [f"{side}.blocks.{index}." for side in sides for index in range(len(getattr(plain, side).blocks))]
    assert len(actual) == len(blocks) + 2
    for level, block in zip(actual[1:-1], blocks, strict=True):
        assert level and all(name.startswith((block, f"{block.split('.')[0]}.final.")) for name in level)
    assert all(name.startswith(("pooler", "output")) for name in actual[-1])


def test_a_head_is_the_top_layer_and_a_tied_embedding_the_bottom() -> None:
    *_, head = named(Classifier(network("bert"), ("yes", "no")))
    assert head == {f"{module}.{kind}" for module in ("head", "body.pooler.dense") for kind in ("weight", "bias")}
    bottom, *_, head = named(MaskedLM(network("bert", tied=True)))
    assert "body.embed.table.weight" in bottom and "lm_head.output.bias" in head


def test_layers_that_share_weights_count_as_one() -> None:
    shared = network("bert", depth=6, hidden_groups=2, embedding_width=16)
    bottom, first, second, _ = named(shared)
    assert "embedding_projection.weight" in bottom
    assert all(name.startswith("encoder.blocks.0.") for name in first)
    assert all(name.startswith("encoder.blocks.3.") for name in second)


@pytest.mark.parametrize("family", ["seq2seq", "convs2s", "bytenet"])
def test_a_family_without_such_layers_is_refused_by_name(family: str) -> None:
    with pytest.raises(UserError, match=f"a {family} model has no stack of layers"):
        layer_groups(network(family))


def test_plain_runs_have_the_two_groups_they_had() -> None:
    plain = network("gpt")
    matrices, rest = AdamW(plain, TrainOptions(weight_decay=0.1)).param_groups
    assert (matrices["weight_decay"], matrices["lr_multiplier"]) == (0.1, 1.0)
    assert (rest["weight_decay"], rest["lr_multiplier"]) == (0.0, 1.0)
    assert all(each.ndim == 2 for each in matrices["params"])


def test_each_layer_learns_at_its_own_rate(tmp_path: Path) -> None:
    """AdamW's first update moves a weight by the learning rate, whatever the gradient."""
    options = ("train.layer_decay=0.5", "train.warmup_steps=0", "train.weight_decay=0.0", "train.learning_rate=1e-3")
    chosen = recipe(lay_out(tmp_path), BERT, 1, *options)
    before: Any = prepare_network(chosen).network
    start(chosen, quiet=True)
    after, weights = trained(tmp_path / "run", 1), dict(before.named_parameters())
    assert {*lr_multipliers(before, 0.5).values()} == {1.0, 0.5, 0.25, 0.125, 0.0625}
    names = {parameter: name for name, parameter in weights.items()}
    for distance, level in enumerate(reversed(layer_groups(before))):
        moved = max(float((after[names[each]] - each.detach()).abs().max()) for each in level)
        assert moved == pytest.approx(1e-3 * 0.5**distance, rel=1e-2)


@pytest.mark.parametrize(("freeze", "moving"), [("embeddings", 4), ("2", 2), ("body", 1), ("3", 1)])
def test_what_is_frozen_stays_and_the_rest_moves(freeze: str, moving: int, tmp_path: Path) -> None:
    chosen = recipe(lay_out(tmp_path), BERT, 3, f"train.freeze={freeze}", "train.ema_decay=0.5")
    loaded: Any = prepare_network(chosen).network
    start(chosen, quiet=True)
    run = tmp_path / "run"
    after = {name: tensor for name, tensor in trained(run, 3).items() if not name.startswith("average/")}
    names = {parameter: name for name, parameter in loaded.named_parameters()}
    above = {names[each] for level in layer_groups(loaded)[-moving:] for each in level}
    assert after.keys() == above
    before = dict(loaded.named_parameters())
    assert all(not torch.equal(tensor, before[name]) for name, tensor in after.items() if "key.bias" not in name)
    kept = dict(load(run / "checkpoint-3").network.named_parameters())
    assert all(torch.equal(kept[name], before[name]) for name in before.keys() - above)


def test_layers_are_unfrozen_one_by_one_from_the_top() -> None:
    plain = Classifier(network("gpt", depth=2), ("yes", "no"))
    thaw = GradualUnfreezing(plain, 3)
    for step, count in [(0, 1), (2, 1), (3, 2), (5, 2), (6, 3), (9, 4), (40, 4)]:
        thaw(step)
        actual = [all(each.requires_grad for each in level) for level in reversed(layer_groups(plain))]
        assert actual == [index < count for index in range(4)]


def test_unfreezing_ends_when_all_layers_are_trained() -> None:
    """A language model whose output is its embedding has no head: its top layer is the first to be trained."""
    plain = network("gpt", depth=2, tied=True)
    GradualUnfreezing(plain, 5)(0)
    moving = {name for name, each in plain.named_parameters() if each.requires_grad}
    assert moving and all(name.startswith(("decoder.blocks.1.", "decoder.final.")) for name in moving)


TRICKS = ("train.layer_decay=0.7", "train.unfreeze_steps=2", "train.ema_decay=0.8", "train.schedule=linear")
WAYS = {
    "scratch": (BERT, "train.freeze=embeddings"),
    "published": ('from = "{base}"', "train.freeze=1"),
    "adapter": ('from = "{base}"\nlora_rank = 2', "train.freeze=1"),
}


@pytest.mark.parametrize(("way", "at"), [("scratch", 3), ("published", 4), ("adapter", 5)])
def test_a_resumed_run_equals_an_uninterrupted_one(way: str, at: int, tmp_path: Path) -> None:
    model, freeze = WAYS[way]
    data = lay_out(tmp_path)
    model = model.format(base=base(tmp_path / "base", "gpt2"))
    options = (*TRICKS, freeze, "train.eval_steps=100", "train.schedule=constant")
    start(recipe(data, model, 8, *options, f"output={tmp_path / 'whole'}"), quiet=True)
    start(recipe(data, model, at, *options), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=8"])
    files = ("adapter_model.safetensors", FILES[1]) if way == "adapter" else FILES
    for name in files:
        one, two = (tmp_path / run / "checkpoint-8" / name for run in ("whole", "run"))
        assert one.read_bytes() == two.read_bytes(), name


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_accumulation(tmp_path: Path) -> None:
    data = lay_out(tmp_path)
    options = (*TRICKS[:3], "train.freeze=1", "train.eval_steps=100", "train.learning_rate=1e-3")
    recipe(data, BERT.replace("0.1", "0.0"), 6)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "regard"]
    command = [*launch, "train", str(data / "recipe.toml"), *options, f"output={tmp_path / 'two'}"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr.decode()
    more = "train.gradient_accumulation_steps=2"
    start(recipe(data, BERT.replace("0.1", "0.0"), 6, *options, more, f"output={tmp_path / 'one'}"), quiet=True)
    one, two = trained(tmp_path / "one", 6), trained(tmp_path / "two", 6)
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("model", "option", "message"),
    [
        (BERT, "layer_decay=0.0", "must be above 0 and at most 1"),
        (BERT, "freeze=head", "expected 'embeddings', 'body' or a number of layers"),
        (BERT, "freeze=4", "train.freeze = 4: the model has only 3 layers"),
        (BERT, "unfreeze_steps=-1", "must be 0 or more"),
        ('from = "{base}"\nlora_rank = 2', "freeze=body", "leaves nothing to adapt"),
    ],
)
def test_impossible_options_are_errors(model: str, option: str, message: str, tmp_path: Path) -> None:
    model = model.format(base=base(tmp_path / "base", "gpt2"))
    with pytest.raises(UserError, match=message):
        start(recipe(lay_out(tmp_path), model, 3, f"train.{option}"), quiet=True)
    assert not (tmp_path / "run").exists()


def test_minutes_cannot_be_combined_with_gradual_unfreezing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"set train\.max_steps or train\.epochs"):
        recipe(lay_out(tmp_path), BERT, 3, "train.minutes=2", "train.unfreeze_steps=3")


def test_frozen_layers_cannot_be_changed_on_resume(tmp_path: Path) -> None:
    start(recipe(lay_out(tmp_path), SCRATCH, 2, "train.freeze=1"), quiet=True)
    with pytest.raises(UserError, match=r"train\.freeze cannot be changed on resume"):
        resume(tmp_path / "run", quiet=True, overrides=["train.freeze=0"])


def test_the_doctor_knows_what_is_frozen(tmp_path: Path) -> None:
    full, partial = (
        examine(recipe(lay_out(tmp_path), BERT, 3, *options)).facts["network"]
        for options in ((), ("train.freeze=body", "train.unfreeze_steps=2"))
    )
    assert partial["gradient_bytes"] < 0.2 * full["gradient_bytes"]
