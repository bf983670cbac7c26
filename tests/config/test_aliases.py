"""Names of other tools: accepted in recipes and overrides, resolved to one key, and an error where two are given."""

from dataclasses import fields
from pathlib import Path

import pytest

from regard.config.aliases import ALIASES, MENTIONED, OLD_KEYS, OLD_KEYS_BY_FAMILY, VALUES
from regard.config.options import DecodeOptions, DistilOptions
from regard.config.recipe import load_recipe, to_toml
from regard.errors import UserError
from regard.models.registry import FAMILIES
from regard.tasks.registry import TASKS, options_of

SMALL = """task = "translate"

[data]
train = "train.tsv"

[model]
family = "transformer"
hidden_size = 64
num_attention_heads = 4

[train]
per_device_train_batch_size = 16
num_train_epochs = 3
lr = 2e-3
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def keys() -> set[str]:
    """Every key that a recipe may have."""
    tables = [(section, table) for task in TASKS for section, table in options_of(task)._asdict().items()]
    tables += [("distil", DistilOptions), ("decode", DecodeOptions)]
    present = {f"{section}.{option.name}" for section, table in tables for option in fields(table)}
    present |= {f"model.{option.name}" for family in FAMILIES.values() for option in fields(family.config)}
    return present | {"model.lora_rank", "model.lora_alpha", "model.lora_targets"}


def test_aliases_refer_to_keys_and_are_not_keys() -> None:
    by_family = {key for names in OLD_KEYS_BY_FAMILY.values() for key in names.values()}
    targets = {*ALIASES.values(), *VALUES, *OLD_KEYS.values(), *by_family}
    assert targets <= keys()
    assert not ALIASES.keys() & keys()
    assert not ALIASES.keys() & OLD_KEYS.keys()
    for name in (*ALIASES.items(), *OLD_KEYS.items()):
        assert name[0].partition(".")[0] == name[1].partition(".")[0]  # of the same section


def test_a_recipe_with_aliases_is_the_same_recipe(path: Path, tmp_path: Path) -> None:
    present = SMALL
    for name in ("hidden_size", "num_attention_heads", "per_device_train_batch_size", "num_train_epochs", "lr"):
        (key,) = {key for alias, key in ALIASES.items() if alias.endswith(f".{name}")}
        present = present.replace(f"{name} =", f"{key.partition('.')[2]} =")
    same = tmp_path / "same" / "small.toml"
    same.parent.mkdir()
    same.write_text(present)
    recipe = load_recipe(path)
    assert to_toml(recipe).replace(str(tmp_path), "") == to_toml(load_recipe(same)).replace(str(same.parent), "")
    assert (recipe.model["width"], recipe.train.batch_size, recipe.train.learning_rate) == (64, 16, 2e-3)
    assert "hidden_size" not in to_toml(recipe)


def test_overrides_with_aliases(path: Path) -> None:
    recipe = load_recipe(path, ["train.lr=1e-4", "model.intermediate_size=99"])
    assert recipe.train.learning_rate == 1e-4
    assert recipe.model["feedforward"] == 99
    assert load_recipe(path, ["train.learning_rate=1e-4"]).train.learning_rate == 1e-4  # over the file's `lr`
    recipe = load_recipe(path, ["train.max_iters=7"])
    assert (recipe.train.max_steps, recipe.train.epochs) == (7, 0)  # they exclude each other


def test_a_base_and_a_recipe_may_use_different_names(path: Path, tmp_path: Path) -> None:
    (tmp_path / "child.toml").write_text('base = "small.toml"\n[train]\nlearning_rate = 5.0\n[model]\nwidth = 32\n')
    recipe = load_recipe(tmp_path / "child.toml")
    assert (recipe.train.learning_rate, recipe.model["width"], recipe.model["heads"]) == (5.0, 32, 4)


def test_values_with_aliases(path: Path) -> None:
    overrides = ["model.family=llama", "model.hidden_act=silu"]
    assert load_recipe(path, overrides).model["activation"] == "swish"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "learning_rate = 1.0",
            "small.toml:15: 'train.learning_rate' and 'train.lr' are the same key: give one of them",
        ),
        ("save_total_limit = 3\nkeep = 2", "small.toml:16: 'train.keep' and 'train.save_total_limit' are the same key"),
        ('logging_steps = "many"', 'small.toml:15: train.log_steps = "many" does not fit; expected a whole number'),
        ("bf16 = true", "small.toml:15: unknown key 'train.bf16'; did you mean train.precision = \"bfloat16\"?"),
        ("hidden_size = 3", "small.toml:15: unknown key 'train.hidden_size'; did you mean 'model.width'?"),
    ],
)
def test_the_line_and_the_name_in_the_file_are_reported(path: Path, line: str, message: str) -> None:
    path.write_text(f"{SMALL}{line}\n")
    with pytest.raises(UserError) as error:
        load_recipe(path)
    assert message in str(error.value)


def test_one_key_under_two_names_on_the_command_line(path: Path) -> None:
    with pytest.raises(UserError, match=r"command line: 'train\.lr' and 'train\.learning_rate' are the same key"):
        load_recipe(path, ["train.lr=1", "train.learning_rate=2"])
    assert load_recipe(path, ["train.lr=1", "train.lr=2"]).train.learning_rate == 2


@pytest.mark.parametrize("name", ["lr", "num_train_epochs", *MENTIONED])
def test_a_name_without_its_section_is_explained(path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"command line: unknown key '{name}'; did you mean .?(train|decode)\."):
        load_recipe(path, [f"{name}=1"])


def test_every_alias_is_documented() -> None:
    """In the row of its key, or in the table of further names, whose rows have aliases and keys in the same order."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for alias, key in ALIASES.items():
        name = alias.partition(".")[2]
        assert any(f"`{key}`" in row and f"`{name}`" in row for row in rows), f"{alias} → {key}"


def test_keys_of_earlier_versions_load_under_their_present_names(path: Path) -> None:
    old = SMALL.replace("hidden_size = 64", "width = 64\nlimit = 99").replace("transformer", "bert")
    path.write_text(old)
    recipe = load_recipe(path, ["model.segments=3"])
    assert recipe.model == {"family": "bert", "width": 64, "max_positions": 99, "heads": 4, "token_types": 3}
    path.write_text(old.replace("limit = 99", "limit = 99\nmax_positions = 98"))
    with pytest.raises(UserError, match=r"small\.toml:10: 'model\.max_positions' and 'model\.limit' are the same key"):
        load_recipe(path)


def test_an_old_key_may_depend_on_the_family(path: Path, tmp_path: Path) -> None:
    path.write_text(SMALL.replace("transformer", "deberta"))
    assert load_recipe(path, ["model.reach=7"]).model["max_relative_positions"] == 7
    (tmp_path / "child.toml").write_text('base = "small.toml"\n[model]\nreach = 9\n')
    assert load_recipe(tmp_path / "child.toml").model["max_relative_positions"] == 9
    with pytest.warns(UserWarning, match="replaces 'deberta'; unsupported fields and values are dropped: heads = 4"):
        assert load_recipe(path, ["model.family=seq2seq", "model.reach=7"]).model["local_window"] == 7


FORMER = """
task = "{task}"
output = "runs/former"
seed = 1

[data]
train = "a.tsv"
validation = ""
test = ""
generate = ""
source = ""
target = ""
columns = []
prefix = ""
text = ""
text2 = ""
label = ""
label_until = ""
label_kind = "one"
label_separator = ","
stratify = {stratify}
question = ""
context = ""
answer = ""
segment = 0
stride = 0
pairs = "none"
masked = 0.15
whole_words = false
split_by = "source"
max_length = 256

[model]
family = "{family}"

[train]
batch_size = 8
max_steps = 9
average_decay = 0.5
class_weights = "none"
auxiliary = 0.0
"""


@pytest.mark.parametrize(
    ("task", "family"),
    [("translate", "transformer"), ("generate", "gpt"), ("classify", "bert"), ("tag", "bert"), ("fill", "bert")],
)
def test_a_recipe_that_an_earlier_version_wrote_out_loads(task: str, family: str, tmp_path: Path) -> None:
    """It has the keys of all tasks, with their defaults."""
    stratify = str(task == "classify").lower()
    (tmp_path / "recipe.toml").write_text(FORMER.format(task=task, family=family, stratify=stratify))
    recipe = load_recipe(tmp_path / "recipe.toml")
    assert recipe.train.ema_decay == 0.5 and recipe.data.max_length == 256
    (tmp_path / "again.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe
