"""Low-rank adapters: they begin as nothing, only they are trained and kept, and merged they are the same function."""

import json
import random
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import batch, vocabulary
from language_checkpoints import SMALL, TOKENS, language_model, open_in_transformers, text, write
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.cli.main import main
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.interop import folder
from regard.interop import peft as adapter
from regard.layers.lora import AdapterOptions, adapt, adapters, merge
from regard.models import registry as models
from regard.training.build import resume, start
from tests.training.test_resume import finish, go_on, kill_when, reached

RECIPE = """
task = "generate"
[data]
train = "words.txt"
max_length = 23
[model]
from = "{base}"
lora_rank = 3
lora_alpha = 7.0
lora_targets = "{targets}"
[train]
batch_size = 3
max_steps = {steps}
save_steps = 4
learning_rate = 3e-2
schedule = "constant"
warmup_steps = 2
ema_decay = 0.7
log_steps = 1
threads = 1
"""
FILES = ("adapter_model.safetensors", "training.safetensors", "adapter_config.json", "config.json", "base.json")


def shaken(network: Any) -> Any:
    """Adapters that are no longer zero."""
    for each in adapters(network).values():
        torch.nn.init.normal_(each.lora_b, std=0.3)
    return network


def network(name: str = "gpt", **fields: Any) -> Any:
    sizes = models.sizes(name, 53, 53)
    return models.build({"family": name, "preset": "tiny", "dropout": 0.0, **fields}, **sizes).eval()


def base(folder: Path, kind: str) -> Path:
    return write(language_model(kind), folder, vocabulary(TOKENS))


def train(place: Path, name: str, base: Path, steps: int, targets: str = "query value", *overrides: str) -> Path:
    path = place / f"{name}.toml"
    path.write_text(RECIPE.format(base=base, steps=steps, targets=targets))
    chance = random.Random(1)
    (place / "words.txt").write_text("\n".join(f"w{chance.randrange(11)} w{chance.randrange(49)}" for _ in range(400)))
    start(load_recipe(path, [f"output={place / name}", *overrides]), quiet=True)
    return place / name


@pytest.mark.parametrize("targets", ["query value", "query key value output up down"])
@torch.no_grad()
def test_an_adapter_begins_as_nothing_and_merged_is_the_same_function(targets: str) -> None:
    plain, tokens = network(), text(19)
    before = deepcopy(plain.state_dict())
    expected = plain(tokens)
    adapt(plain, AdapterOptions(5, 11.0, tuple(targets.split())))
    assert torch.equal(plain(tokens), expected)
    adapted = shaken(plain)(tokens)
    assert (adapted - expected).abs().max() > 0.01
    assert len(adapters(plain)) == len(targets.split()) * plain.config.depth
    merge(plain)
    assert (plain(tokens) - adapted).abs().max() <= 1e-5
    assert plain.state_dict().keys() == before.keys()
    changed = {name.rsplit(".", 2)[-2] for name, weight in plain.state_dict().items() if not weight.equal(before[name])}
    assert changed == set(targets.split())


def test_any_family_with_projections_is_adapted() -> None:
    for name in ("transformer", "llama", "seq2seq"):
        plain = network(name)
        adapt(plain, AdapterOptions(2, 4.0, ("query", "key")))
        trained = {part for part, weight in plain.named_parameters() if weight.requires_grad}
        assert trained
        assert trained == {f"{place}.{part}" for place in adapters(plain) for part in ("lora_a", "lora_b")}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("lora_targets='quary value'", "'quary' is no projection; did you mean 'query'"),
        ("lora_targets='gate'", "GPT has no projection 'gate'; possible: query, key, value, output, up, down"),
        ("lora_targets=''", "should be words such as"),
        ("lora_rank=-1", "should be a whole number"),
        ("lora_rank=1.5", "should be a whole number"),
        ("lora_alpha=0", "should be a number above 0"),
        ("lora_rang=4", r"did you mean model\.lora_rank"),
    ],
)
def test_impossible_options_are_errors(key: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        train(tmp_path, "run", base(tmp_path / "base", "gpt2"), 1, "query", f"model.{key}")
    assert not (tmp_path / "run").exists()


def test_an_adapter_needs_a_base_model(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(RECIPE.format(base="x", steps=1, targets="query").replace("from =", "family ="))
    with pytest.raises(UserError, match=r"model\.lora_rank.*set model\.from"):
        load_recipe(path)


@pytest.mark.parametrize("kind", SMALL)
def test_only_the_adapter_is_trained_and_kept_and_a_stop_changes_nothing(kind: str, tmp_path: Path) -> None:
    place = base(tmp_path / "base", kind)
    whole = train(tmp_path, "whole", place, 9) / "checkpoint-9"
    resume(train(tmp_path, "stopped", place, 4), quiet=True, overrides=["train.max_steps=9"])
    for name in FILES:
        assert (whole / name).read_bytes() == (tmp_path / "stopped" / "checkpoint-9" / name).read_bytes(), name
    assert not (whole / "model.safetensors").exists()
    kept = load_file(whole / "adapter_model.safetensors")
    assert all(".lora_A." in name or ".lora_B." in name for name in kept)
    state = load_file(whole / "training.safetensors")
    assert {name.rsplit("/", 1)[0].split("/")[0] for name in state} == {"weights", "average", "optimizer"}
    assert all(".lora_a" in name or ".lora_b" in name for name in state)
    before, after = folder.load(place).network.state_dict(), folder.load(whole).network.state_dict()
    changed = {name.rsplit(".", 2)[-2] for name in before if not before[name].equal(after[name])}
    assert changed == {"query", "value"}


def peft(model: Any, place: Path) -> Any:
    """What PEFT would make of a model of transformers: each module's weight and its scaled product."""
    config, tensors = json.loads((place / "adapter_config.json").read_text()), load_file(place / adapter.WEIGHTS)
    modules = dict(model.named_modules())
    matched = {name for name in modules if any(f".{name}".endswith(f".{end}") for end in config["target_modules"])}
    assert {f"base_model.model.{name}.lora_{letter}.weight" for name in matched for letter in "AB"} == set(tensors)
    for name in matched:
        down, up = (tensors[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")
        end = next((end for end in config["rank_pattern"] if name.endswith(end)), None)
        rank = config["rank_pattern"].get(end, config["r"])
        assert len(down) == rank
        product = up @ down * config["alpha_pattern"].get(end, config["lora_alpha"]) / rank
        modules[name].weight.data += product.T if config["fan_in_fan_out"] else product
    return model


@pytest.mark.parametrize("kind", SMALL)
def test_peft_reads_the_folder_and_saves_the_same(kind: str, tmp_path: Path) -> None:
    """Also where the published file keeps queries, keys and values in one tensor."""
    place = base(tmp_path / "base", kind)
    run = train(tmp_path, "run", place, 4, "query value output down")
    model, tokens = regard.load(run), text(23)
    logits = model.network(tokens)
    assert (peft(open_in_transformers(place), run / "checkpoint-4")(tokens).logits - logits).abs().max() <= 1e-4
    model.save(tmp_path / "merged")
    assert not any((tmp_path / "merged" / name).exists() for name in adapter.FILES)
    assert (open_in_transformers(tmp_path / "merged")(tokens).logits - logits).abs().max() <= 1e-4
    again = train(tmp_path, "again", tmp_path / "merged", 1)  # and is a base like any other
    assert json.loads((again / "checkpoint-1" / "base.json").read_text())["folder"] == str(tmp_path / "merged")


@pytest.mark.parametrize(
    ("name", "fields", "targets"),
    [
        ("gpt", {}, "query key value output up down"),
        ("llama", {"key_heads": 2}, "key gate"),
        ("transformer", {"norm": "post"}, "query value down"),  # Marian's layout
        ("transformer", {"norm": "pre"}, "key output"),  # our own
        ("seq2seq", {}, "query key"),
    ],
)
@torch.no_grad()
def test_adapted_and_loaded_are_the_same(name: str, fields: dict, targets: str, tmp_path: Path) -> None:
    """The network that training evaluates is, to rounding, the one that is loaded: in every layout."""
    folder.save(tmp_path / "base", network(name, **fields), vocabulary(TOKENS), {})
    loaded = folder.load(tmp_path / "base")
    inputs = batch() if "source_vocabulary" in vars(loaded.network.config) else (text(23),)
    adapt(loaded.network, AdapterOptions(3, 5.0, tuple(targets.split())))
    adapted = shaken(loaded.network)
    folder.save(tmp_path / "made", *loaded[:3], config=loaded.config, base=folder.base_at(tmp_path / "base", loaded))
    found = folder.load(tmp_path / "made").network
    assert (adapted(*inputs) - found(*inputs)).abs().max() <= 1e-5
    plain, before = (folder.load(tmp_path / each, merged=False).network for each in ("made", "base"))
    assert torch.equal(plain(*inputs), before(*inputs))
    assert not torch.equal(adapted(*inputs), plain(*inputs))


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    place = base(tmp_path / "base", "gpt2")
    train(tmp_path, "whole", place, 40)
    path, run = tmp_path / "whole.toml", tmp_path / "killed"
    for target in (5, 17):
        assert kill_when(go_on(path, run), lambda target=target: reached(run) >= target)
    finish(go_on(path, run))
    for name in FILES:
        ends = [(tmp_path / each / "checkpoint-40" / name).read_bytes() for each in ("whole", "killed")]
        assert ends[0] == ends[1], name


def test_convert_merges_the_adapter_into_a_separate_folder(trained: Path, tmp_path: Path, capfd) -> None:
    for code, out in ((0, tmp_path / "out"), (1, tmp_path / "out"), (1, trained / "run" / "recipe.toml")):
        with pytest.raises(SystemExit) as left:
            main(["convert", str(trained / "run"), str(out), "--json"])
        assert left.value.code == code
        said, error = capfd.readouterr()
        if code:
            assert f"{out} exists and is not empty" in error
        else:
            assert set(json.loads(said)["files"]) >= {"config.json", "model.safetensors", "tokenizer.json"}
    tokens = text(11)
    assert torch.equal(*(regard.load(each).network(tokens) for each in (trained / "run", tmp_path / "out")))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and an adapter of it in two folders."""
    place = tmp_path_factory.mktemp("trained")
    torch.manual_seed(1)
    train(place, "run", base(place / "base", "llama"), 2)
    return place


def test_a_base_is_found_where_it_moved_to(trained: Path, tmp_path: Path, monkeypatch) -> None:
    tokens = text(11)
    expected = regard.load(trained / "run").network(tokens)
    moved = shutil.copytree(trained, tmp_path / "moved")
    (trained / "base").rename(trained / "away")
    try:
        assert torch.equal(regard.load(moved / "run").network(tokens), expected)
        (moved / "base").rename(tmp_path / "base")
        with pytest.raises(UserError, match=r"an adapter of '.*base', which was not found. Searched: .*REGARD_WEIGHTS"):
            regard.load(moved / "run")
        monkeypatch.setenv("REGARD_WEIGHTS", str(tmp_path))
        assert torch.equal(regard.load(moved / "run").network(tokens), expected)
        weights = load_file(tmp_path / "base" / "model.safetensors")
        weights["model.norm.weight"] += 1e-6
        save_file(weights, tmp_path / "base" / "model.safetensors")
        for deed in (regard.load, lambda run: resume(run, quiet=True, overrides=["train.max_steps=3"])):
            with pytest.raises(UserError, match="differ from those it was trained on"):
                deed(moved / "run")
    finally:
        (trained / "away").rename(trained / "base")


def test_an_adapter_of_an_adapter_is_refused_but_all_of_it_may_be_trained_on(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is an adapter itself: merge it first"):
        train(tmp_path, "again", trained / "run", 1)
    run = train(tmp_path, "whole", trained / "run", 1, "query", "model.lora_rank=0") / "checkpoint-1"
    assert (run / "model.safetensors").exists()
    assert not (run / "adapter_model.safetensors").exists()


def peft_only(place: Path, target: Path) -> Path:
    """As PEFT itself writes an adapter: without config.json, tokenizer and base.json."""
    target.mkdir()
    for name in (adapter.CONFIG, adapter.WEIGHTS):
        shutil.copy(place / name, target / name)
    return target


def test_an_adapter_of_peft_is_read(trained: Path, tmp_path: Path) -> None:
    found = regard.load(peft_only(trained / "run" / "checkpoint-2", tmp_path / "theirs"))
    expected, tokens = regard.load(trained / "run"), text(11)
    assert torch.equal(found.network(tokens), expected.network(tokens))
    assert found.task == "generate"


def change_config(place: Path, **keys: Any) -> None:
    path = place / adapter.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def change_tensors(place: Path, change: Any) -> None:
    found: dict[str, Tensor] = load_file(place / adapter.WEIGHTS)
    save_file(change(found), place / adapter.WEIGHTS)


PATTERNS = {
    "that backtracks": "((.|..|...)+)+!",
    "of wildcards": "a.*b.*c.*d",
    "with a huge count": "a{99999999999}",
    "of nested groups": "(" * 2000 + "a" + ")" * 2000,
    "without end": "a" * 5000,
}


HARMS: dict[str, tuple[Any, str]] = {
    "another kind": (lambda f: change_config(f, peft_type="IA3"), "peft_type = IA3"),
    "dora": (lambda f: change_config(f, use_dora=True), "use_dora = True"),
    "another start": (lambda f: change_config(f, init_lora_weights="pissa"), "init_lora_weights = pissa"),
    "no alpha": (lambda f: change_config(f, lora_alpha="16"), "lora_alpha = '16' should be a number"),
    "no base": (lambda f: change_config(f, base_model_name_or_path=None), "names no base"),
    **{
        f"a pattern {name}": (
            lambda f, pattern=pattern: change_config(f, alpha_pattern={pattern: 1}),
            "alpha_pattern: ",
        )
        for name, pattern in PATTERNS.items()
    },
    "patterns in a list": (lambda f: change_config(f, alpha_pattern=["q_proj"]), "alpha_pattern = ['q_proj']"),
    "an endless alpha": (lambda f: change_config(f, lora_alpha=10**400), "lora_alpha = 1000"),
    "an endless alpha of a pattern": (lambda f: change_config(f, alpha_pattern={"q_proj": 10**400}), "q_proj = 1000"),
    "rank 0": (
        lambda f: change_tensors(f, lambda t: {n: e[:0] if "lora_A" in n else e[:, :0] for n, e in t.items()}),
        "do not match the base weight",
    ),
    "nobody's base": (lambda f: change_config(f, base_model_name_or_path="~nosuchuser/x"), "which was not found"),
    "half": (lambda f: change_tensors(f, lambda t: dict([*t.items()][1:])), "should have lora_A.weight and lora_B"),
    "other sizes": (
        lambda f: change_tensors(f, lambda t: {name: each[:, :-1].clone() for name, each in t.items()}),
        "do not match the base weight",
    ),
    "other names": (
        lambda f: change_tensors(f, lambda t: {name.replace("self_attn", "attn"): each for name, each in t.items()}),
        "which the base model does not have",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_other_kinds_of_adapters_are_errors(harm: str, trained: Path, tmp_path: Path) -> None:
    place = peft_only(trained / "run" / "checkpoint-2", tmp_path / "theirs")
    deed, said = HARMS[harm]
    deed(place)
    with pytest.raises(UserError) as error:
        regard.load(place)
    assert said in str(error.value)
    assert str(place) in str(error.value)


@pytest.mark.parametrize("pattern", ["q_proj", r"layers\.\d+\.self_attn.*", "x|self_attn.q_proj$"])
def test_an_alpha_pattern_changes_the_modules_it_matches(pattern: str, trained: Path, tmp_path: Path) -> None:
    """As in PEFT, at the end of a module's name."""
    place = peft_only(trained / "run" / "checkpoint-2", tmp_path / "theirs")
    plain = folder.load(place).network.state_dict()
    change_config(place, alpha_pattern={pattern: 321})
    changed = folder.load(place).network.state_dict()
    differing = {name for name in plain if not torch.equal(plain[name], changed[name])}
    assert differing and differing >= {name for name in plain if name.endswith(".query.weight")}
    assert "*" in pattern or all(name.endswith(".query.weight") for name in differing)
