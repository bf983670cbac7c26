"""Recipes: what is written is what is read, and an error names a wrong key, its location and the nearest key."""

import string
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import recipe_files
from regard.config.aliases import ALIASES, OLD_KEYS, VALUES
from regard.config.recipe import (
    ADAPTERS,
    MIN_STEPS,
    DecodeOptions,
    Recipe,
    TokenizerOptions,
    TrainOptions,
    load_recipe,
    to_toml,
)
from regard.config.recipe_files import shipped_recipes
from regard.errors import UserError
from regard.tasks.translate.options import TranslateData

SMALL = """task = "translate"

[data]
train = "train.tsv"

[model]
family = "transformer"

[train]
batch_tokens = 512
max_steps = 7
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
number = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=7,
)
data = st.builds(
    TranslateData,
    train=text.filter(bool),
    validation=text | st.floats(0.001, 0.999),
    test=text,
    source=text,
    columns=st.lists(text, max_size=3).map(tuple),
    max_length=st.integers(1, 999),
)
train = st.builds(
    TrainOptions,
    batch_tokens=st.integers(1, 9999),
    epochs=st.floats(0.01, 99),
    learning_rate=st.floats(0, 1),
    schedule=st.sampled_from(["inverse_sqrt", "cosine", "linear", "constant"]),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
    tensorboard=st.booleans(),
)
RESERVED = {"preset", "from", *ADAPTERS}  # keys with rules of their own; other names of keys are replaced when read
RESERVED |= {name.removeprefix("model.") for name in (*ALIASES, *OLD_KEYS, *VALUES)}
recipes = st.builds(
    Recipe,
    task=st.just("translate"),
    output=text,
    seed=st.integers(0, 2**63 - 1),
    origin=text,
    data=data,
    tokenizer=st.builds(TokenizerOptions, kind=st.sampled_from(["bpe", "words"]), joint=st.booleans()),
    model=st.dictionaries(text.filter(lambda name: name not in RESERVED), plain, max_size=5).map(
        lambda fields: {**fields, "family": "transformer"}
    ),
    train=train,
    decode=st.builds(DecodeOptions, num_beams=st.integers(1, 9), length_penalty=number),
)


@settings(max_examples=60, deadline=None)
@given(recipe=recipes)
def test_a_written_recipe_is_read_back_equal(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    file.write_text(to_toml(recipe), encoding="utf-8")
    assert load_recipe(file) == recipe


def test_the_copy_in_the_run_finds_the_data_next_to_the_original(path: Path, tmp_path: Path) -> None:
    run = tmp_path / "elsewhere"
    run.mkdir()
    (run / "recipe.toml").write_text(to_toml(load_recipe(path)))
    assert load_recipe(run / "recipe.toml").origin == str(path.parent.resolve())


def test_overrides_are_toml_values_or_bare_words(path: Path) -> None:
    recipe = load_recipe(
        path,
        ["output=runs/a", "train.learning_rate=1", "train.betas=[0.5, 0]", 'model.preset="x y"', "decode.num_beams=5"],
    )
    assert recipe.output == "runs/a"
    assert recipe.train.learning_rate == 1.0
    assert recipe.train.betas == (0.5, 0.0)
    assert recipe.model == {"family": "transformer", "preset": "x y"}
    assert recipe.decode.num_beams == 5


MODEL = 'family = "transformer"\nwidth = 24\nheads = 3\nnorm = "post"\ndecoder_heads = 5\npreset = "base"'


def test_a_family_on_the_command_line_drops_the_fields_that_it_does_not_have(path: Path) -> None:
    path.write_text(SMALL.replace('family = "transformer"', MODEL))
    notes: list[str] = []
    overrides = ["model.reach=7", "model.family=seq2seq"]  # an old key that depends on the family
    recipe = load_recipe(path, overrides, notes.append)
    assert recipe.model == {"family": "seq2seq", "width": 24, "local_window": 7}
    (note,) = notes
    assert note.startswith(
        "model.family = 'seq2seq' replaces 'transformer'; unsupported fields and values are dropped: "
    )
    for field in ("heads = 3", 'norm = "post"', "decoder_heads = 5", 'preset = "base"'):
        assert field in note
    with pytest.warns(UserWarning, match="replaces 'transformer'; unsupported fields and values are dropped"):
        load_recipe(path, ["model.family=seq2seq"])


def test_a_checkpoint_on_the_command_line_drops_the_family_and_the_sizes(path: Path) -> None:
    path.write_text(SMALL.replace('family = "transformer"', MODEL))
    notes: list[str] = []
    recipe = load_recipe(path, ["model.from=FOLDER", "model.lora_rank=2"], notes.append)
    assert recipe.model == {"from": "FOLDER", "lora_rank": 2}
    (note,) = notes
    assert note.startswith('model.from = "FOLDER" replaces [model]; dropped: ')
    for field in ("width = 24", "heads = 3", 'preset = "base"'):
        assert field in note
    with pytest.raises(UserError, match=r"model\.from takes its sizes from the checkpoint: remove model\.heads"):
        load_recipe(path, ["model.from=FOLDER", "model.heads=5"], notes.append)


@pytest.mark.parametrize("name", ["image", "caption", "translate", "write"])
def test_recipes_for_own_data_take_a_checkpoint(name: str) -> None:
    recipe = load_recipe(name, ["model.from=FOLDER"], lambda note: None)
    assert recipe.model == {"from": "FOLDER"}


def test_fields_that_the_family_has_or_that_are_given_with_it_are_kept(path: Path) -> None:
    path.write_text(SMALL.replace('family = "transformer"', MODEL))
    assert load_recipe(path, ["model.family=transformer"]).model == load_recipe(path).model
    notes: list[str] = []
    recipe = load_recipe(path, ["model.family=bert", "model.cell=gru"], notes.append)
    assert recipe.model == {"family": "bert", "width": 24, "heads": 3, "cell": "gru", "preset": "base"}  # not dropped
    assert "norm" in notes[0]


def test_an_override_replaces_the_choice_it_excludes(path: Path) -> None:
    options = load_recipe(path, ["train.minutes=0.5", "train.batch_size=3"]).train
    assert (options.max_steps, options.minutes, options.batch_tokens, options.batch_size) == (0, 0.5, 0, 3)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.max_step=3", "command line: unknown key 'train.max_step'; did you mean 'train.max_steps'"),
        ("train.epoch=3", "did you mean 'train.epochs'?"),
        ("reviews.csv", "override 'reviews.csv': expected key=value; did you mean data.train=reviews.csv?"),
        ("trian.max_steps=3", "did you mean 'train'"),
        ("sede=3", "did you mean 'seed'"),
        ("learning_rate=1e-4", "command line: unknown key 'learning_rate'; did you mean 'train.learning_rate'?"),
        ("data.learning_rate=1e-4", "unknown key 'data.learning_rate'; did you mean 'train.learning_rate'?"),
        ("temperature=1", "unknown key 'temperature'; did you mean 'distil.temperature' or 'decode.temperature'?"),
        (
            "train.num_epoch=3",
            "'train.num_epoch'; did you mean 'train.epochs' (or its alias 'num_train_epochs')?",
        ),
        ("train.zzz=3", "unknown key 'train.zzz'; expected one of: "),
        ("train.zzz=3", ", … and 20 more"),
        ("train.output=here", "unknown key 'train.output'; did you mean 'output'?"),
        ("train.max_steps=many", "expected a whole number"),
        ("train.max_steps=1.5", "expected a whole number"),
        ("train.max_steps=true", "expected a whole number"),
        ("train.learning_rate=nan", "expected a number"),
        ("train.betas=[0.9]", "expected a list of a number × 2"),
        ("train.schedule=cosin", "did you mean 'cosine'"),
        ("tokenizer.kind=bpee", "did you mean 'bpe'"),
        ("tokenizer.joint=1", "expected true or false"),
        ("train.learning_rate=-1", "train.learning_rate = -1.0: must be 0 or more"),
        ("train.ema_decay=1", "below 1"),
        ("decode.num_beams=0", "decode.num_beams = 0: must be at least 1"),
        ("decode.top_p=0", "decode.top_p"),
        ("decode.num_return_sequences=3", "needs as many num_beams"),
        ("data.train=100", "needs data.synthetic"),
        ("data.validation=1.5", "between 0 and 1"),
        ("data.train=''", "data.train is missing"),
        ("train.max_steps=0", "the length of the run is missing"),
        ("train.batch_tokens=0", "the size of a batch is missing"),
        ("model.family=3", "expected text"),
        ("model.width=1979-05-27", None),
        ("train.max_steps", "key=value"),
        ("task.name=3", "has no keys of its own"),
        ("train.class_weights=balanced", "is not an option of task = 'translate': remove it; it is for classify"),
        (
            "data.stride=5",
            "data.stride = 5 is not an option of task = 'translate': remove it; it is for answer, classify",
        ),
    ],
)
def test_wrong_values_are_errors(path: Path, override: str, said: str | None) -> None:
    if said is None:
        assert load_recipe(path, [override]).model["width"] == "1979-05-27"
        return
    with pytest.raises(UserError) as error:
        load_recipe(path, [override])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SMALL + "epochs = 3\n", "set 2 times (train.max_steps = 7, train.epochs = 3.0)"),
        (SMALL + "batch_size = 3\n", "set 2 times"),
        (SMALL + "kep = 3\n", "small.toml:12: unknown key 'train.kep'; did you mean 'train.keep'"),
        ("keep = 3\n" + SMALL, "small.toml:1: unknown key 'keep'; did you mean 'train.keep'?"),
        (SMALL.replace("max_steps = 7", "max_steps = -7"), "small.toml:11: train.max_steps = -7"),
        (SMALL.replace("family", "width"), "model.family is missing"),
        (SMALL.replace("task", "tasks"), "`task` is missing"),
        (SMALL + "x = = 3\n", "line 12"),
        (SMALL + "[decode]\nnum_beams = 2020-01-01\n", "small.toml:13: decode.num_beams = 2020-01-01 does not fit"),
        (SMALL.replace('family = "transformer"', "family = 'a'\nday = 2020-01-01"), "expected a table"),
    ],
)
def test_errors_name_file_and_line(path: Path, given: str, said: str) -> None:
    path.write_text(given)
    with pytest.raises(UserError) as error:
        load_recipe(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_recipe_is_an_error() -> None:
    with pytest.raises(UserError, match=r"recipe file not found: no/such\.toml \(in .*\); built-in .* without \.toml"):
        load_recipe("no/such.toml")


def test_every_shipped_recipe_loads_by_name() -> None:
    for name in shipped_recipes():
        recipe = load_recipe(name)
        assert recipe.output.startswith("runs/")


def test_reading_recipes_needs_no_torch() -> None:
    program = "import sys, regard.config.recipe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_names_with_odd_characters_are_quoted() -> None:
    recipe = Recipe("t", "o", model={"family": "f", "a b": {"c.d": [string.punctuation]}})
    assert '"a b" = {"c.d" = [' in to_toml(recipe)


def test_a_recipe_extends_another(path: Path) -> None:
    child = path.parent / "child.toml"
    child.write_text('base = "small.toml"\nseed = 5\n[model]\nwidth = 64\n[train]\nepochs = 2\n')
    recipe, below = load_recipe(child), load_recipe(path)
    assert recipe.model == {"family": "transformer", "width": 64}
    assert (recipe.train.epochs, recipe.train.max_steps, recipe.train.batch_tokens) == (2.0, 0, 512)
    assert (recipe.seed, recipe.data, recipe.output) == (5, below.data, "runs/child")
    grandchild = path.parent / "grandchild.toml"
    grandchild.write_text('base = "child.toml"\n[model]\nfamily = "seq2seq"\ncell = "lstm"\n')
    assert load_recipe(grandchild).model == {"family": "seq2seq", "cell": "lstm"}
    assert load_recipe(grandchild, ["train.max_steps=3"]).train.epochs == 0
    grandchild.write_text('base = "child.toml"\n[model]\npreset = "big"\n')
    assert load_recipe(grandchild).model == {"family": "transformer", "preset": "big"}


def test_the_output_folder_is_not_inherited(path: Path) -> None:
    path.write_text('output = "runs/there"\norigin = "elsewhere"\n' + SMALL)
    child = path.parent / "child.toml"
    child.write_text('base = "small.toml"\n')
    recipe = load_recipe(child)
    assert (recipe.output, recipe.origin) == ("runs/child", str(path.parent))


def test_a_base_may_be_a_built_in_recipe(path: Path) -> None:
    path.write_text('base = "reverse"\n[train]\nmax_steps = 3\n')
    recipe, below = load_recipe(path), load_recipe("reverse")
    assert (recipe.train.max_steps, recipe.data, recipe.model) == (3, below.data, below.model)


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ('"small.toml"', r"small.toml:1: base = .*cannot be its own base"),
        ('"revers"', r"small.toml:1: base = .*reverse"),
        ("7", r"small.toml:1: base = 7: expected the name of a recipe"),
        ('"none.toml"', r"small.toml:1: base = .*neither a file in the same folder"),
    ],
)
def test_an_impossible_base_is_an_error(path: Path, base: str, said: str) -> None:
    path.write_text(f"base = {base}\n" + SMALL)
    with pytest.raises(UserError, match=said):
        load_recipe(path)


def test_a_wrong_key_of_the_base_is_an_error_with_its_location(path: Path) -> None:
    path.write_text(SMALL.replace("max_steps", "max_step"))
    child = path.parent / "child.toml"
    child.write_text('base = "small.toml"\n')
    with pytest.raises(UserError, match=r"small.toml:11: unknown key 'train.max_step'"):
        load_recipe(child)


# ── recipes of other packages ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of the group `regard.recipes`, instead of the installed ones."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(recipe_files, "entry_points", lambda group: EntryPoints(points))
    return points


def test_recipes_of_a_declared_package_are_found_last(
    declared: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "moreofthem" / "recipes"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('finding its recipes must not import a package')")
    (folder / "small.toml").write_text(SMALL)
    (folder / "dates.toml").write_text(SMALL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no recipe 'small'"):
        load_recipe("small")
    declared.append(EntryPoint("more", "moreofthem", recipe_files.GROUP))
    assert shipped_recipes()[-1] == "small"
    assert shipped_recipes().count("dates") == 1
    assert load_recipe("small").origin == str(tmp_path)  # as with those of the package
    assert load_recipe("dates").data.train != "train.tsv"  # nor can they replace one
    (tmp_path / "mine.toml").write_text('base = "small"\n[train]\nmax_steps = 9\n')
    assert load_recipe("mine.toml").train.max_steps == 9


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inside", "json.decoder"])
def test_a_declared_package_that_is_missing_or_has_no_folder_is_ignored(
    declared: list[EntryPoint], module: str
) -> None:
    declared.append(EntryPoint("gone", module, recipe_files.GROUP))
    assert "dates" in shipped_recipes()
    assert "multi30k-luong" not in shipped_recipes()
    with pytest.raises(UserError, match=r"no recipe 'multi30k-luong'.*multi30k-transformer"):
        load_recipe("multi30k-luong")


def test_epochs_of_a_built_in_recipe_have_enough_updates(tmp_path: Path) -> None:
    """A user's file may be small; epochs that a user chose are taken as they are."""
    own = tmp_path / "own.toml"
    own.write_text('base = "tag"\n[data]\ntrain = "mine.conll"\n')
    chosen = tmp_path / "chosen.toml"
    chosen.write_text('base = "tag"\n[train]\nepochs = 2\n')
    assert load_recipe("tag").train.min_steps == load_recipe(own).train.min_steps == MIN_STEPS
    assert load_recipe("tag", ["train.min_steps=7"]).train.min_steps == 7
    for recipe in (
        load_recipe(chosen),
        load_recipe("tag", ["train.epochs=2"]),
        load_recipe("tag", ["train.minutes=2"]),
        load_recipe("dates"),
    ):
        assert recipe.train.min_steps == 0 or not recipe.train.epochs
    run = tmp_path / "recipe.toml"
    run.write_text(to_toml(load_recipe("tag")))
    assert load_recipe(run).train.min_steps == MIN_STEPS
    assert load_recipe(run, ["train.epochs=1"]).train.min_steps == 0


def test_a_checkpoint_on_the_command_line_replaces_the_model(tmp_path: Path) -> None:
    """The built-in recipe for images says how to fine-tune."""
    notes: list[str] = []
    recipe = load_recipe("image", ["model.from=vit", "model.new_head=true"], notes.append)
    assert recipe.model == {"from": "vit", "new_head": True}
    (note,) = notes
    assert note.startswith('model.from = "vit" replaces [model]; dropped: ')
    assert all(name in note for name in ('family = "hybrid"', 'preset = "tiny"', "image_size = 64"))
    with pytest.raises(UserError, match=r"remove model\.width"):
        load_recipe("image", ["model.from=vit", "model.width=64"], notes.append)
    with pytest.raises(UserError, match=r"remove model\.encoder"):
        load_recipe("caption", ["model.from=vit", "model.encoder.width=64"], notes.append)
    with pytest.raises(UserError, match=r"model\.new_head = \"yes\" does not fit; expected true or false"):
        load_recipe("image", ["model.from=vit", "model.new_head=yes"], notes.append)
    with pytest.raises(UserError, match=r"remove model\.new_head"):
        load_recipe("caption", ["model.from=vit", "model.new_head=true"], notes.append)


def test_a_recipe_that_starts_from_a_checkpoint_keeps_its_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL.replace('family = "transformer"', 'from = "first"\nlora_rank = 3'))
    assert load_recipe(path, ["model.from=second"]).model == {"from": "second", "lora_rank": 3}


def test_an_empty_model_from_is_a_new_model() -> None:
    recipe = load_recipe("classify", ["model.from=", "model.family=bert", "model.depth=2"])
    assert recipe.model == {"family": "bert", "depth": 2}
    with pytest.raises(UserError, match=r'remove model\.width, or train from scratch with model\.from=""'):
        load_recipe("classify", ["model.width=64"])
