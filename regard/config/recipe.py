"""A recipe: a TOML file that says what to train, on which data, and how; read into frozen dataclasses."""

import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints

from regard.config.aliases import rename_keys
from regard.config.options import (
    AugmentOptions,
    DataOptions,
    DecodeOptions,
    DistilOptions,
    TokenizerOptions,
    TrainOptions,
    require,
)
from regard.config.recipe_files import find_recipe, is_shipped, shipped_recipes
from regard.config.schema import Locations, Table, build, override, show, write, write_key
from regard.errors import UserError, listed, nearest
from regard.tasks.registry import canonical, options_of, owners

__all__ = [
    "EXCLUSIVE", "DataOptions", "DecodeOptions", "DistilOptions", "Recipe", "TokenizerOptions",
    "TrainOptions", "load_recipe", "to_toml",
]  # fmt: skip

ADAPTERS = ("lora_rank", "lora_alpha", "lora_targets")  # keys of [model] that `from` allows

MODEL_KEYS = {"family", "from", *ADAPTERS}  # keys of [model] that are not fields of a family

POOLINGS = ("cls", "mean")  # values of `pooling` with `from`

FROM_SCRATCH = 'model.from="" model.family=NAME'

MIN_STEPS = 150  # train.min_steps with the epochs of a built-in recipe

EXCLUSIVE = {
    "the size of a batch": ("batch_tokens", "batch_size"),
    "the length of the run": ("max_steps", "epochs", "minutes"),
}


@dataclass(frozen=True)
class Recipe:
    """A run. `model` has `family`, `preset`, `from` and the fields of the family, which are checked by the family."""

    task: str
    output: str  # the run folder, relative to the working directory
    seed: int = 1
    origin: str = ""  # the folder of the recipe file: data paths are relative to it, also in the run folder's copy
    data: DataOptions = field(default_factory=DataOptions)
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: Table = field(default_factory=dict)
    train: TrainOptions = field(default_factory=TrainOptions)
    augment: AugmentOptions = field(default_factory=AugmentOptions)
    distil: DistilOptions = field(default_factory=DistilOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)


def load_recipe(
    name_or_path: str | Path, overrides: Sequence[str] = (), note: Callable[[str], None] = warnings.warn
) -> Recipe:
    """Read a recipe by path or built-in name, apply `key.sub=value` overrides, and check everything.

    `note` is given what overrides removed from the recipe.
    """
    path = _locate(name_or_path)
    table, location = _read(path)
    before = dict(model) if isinstance(model := table.get("model"), dict) else {}
    decisive = ("task=", "model.family=")  # applied first: the meaning of other keys depends on them
    for assignment in sorted(overrides, key=lambda assignment: not assignment.startswith(decisive)):
        typed = assignment.partition("=")[0].strip()
        key = override(table, assignment, key_types(table.get("task")))
        first = location.overridden.setdefault(key, typed)
        require(first == typed, f"command line: '{first}' and '{typed}' are the same key: give one of them")
    _replace_model(before, table, location, note)
    if isinstance(train := table.get("train"), dict):
        changes = {name: value for name, value in train.items() if f"train.{name}" in location.overridden}
        table["train"] = train = _not_superseded(train, changes) | changes
        if train.get("epochs") and is_shipped(Path(location("train.epochs").rpartition(":")[0])):
            train.setdefault("min_steps", MIN_STEPS)  # written for more data than a user may have
    _follow_teacher(table)
    table.setdefault("output", f"runs/{path.stem}")
    base_dir = Path.cwd() if is_shipped(path) else path.resolve().parent  # a built-in recipe has no data next to it
    table.setdefault("origin", str(base_dir))
    require("task" in table, f'{path}: `task` is missing: set e.g. task = "translate"')
    try:
        table["task"] = canonical(str(table["task"]))
    except UserError as error:
        raise UserError(f"{location('task')}: {error}") from None
    _reject_other_tasks(table, location)
    recipe = build(Recipe, table, "", location, key_types(table["task"]))
    try:
        _check(recipe)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return recipe


def to_toml(recipe: Recipe) -> str:
    """The recipe with every default written out; loading it again gives an equal Recipe."""
    top, sections = [], []
    for option in fields(recipe):
        value = getattr(recipe, option.name)
        if isinstance(value, str | int):
            top.append(f"{option.name} = {write(value)}")
            continue
        items = value if isinstance(value, dict) else {each.name: getattr(value, each.name) for each in fields(value)}
        lines = [f"{write_key(name)} = {write(item)}" for name, item in items.items()]
        if items:
            sections.append("\n".join([f"[{option.name}]", *lines]))
    return "\n\n".join(["\n".join(top), *sections]) + "\n"


def _locate(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    shipped = find_recipe(str(name_or_path)) if path.suffix != ".toml" else None
    if shipped or path.is_file():
        return shipped or path
    hint = nearest(path.stem, shipped_recipes(), "regard list recipes")
    if path.suffix == ".toml":
        raise UserError(
            f"recipe file not found: {path} (in {Path.cwd()}); built-in recipes are named without .toml{hint}"
        )
    raise UserError(f"no recipe '{name_or_path}': neither a built-in recipe nor a file{hint}")


def _read(path: Path, extending: tuple[Path, ...] = ()) -> tuple[Table, Locations]:
    """A recipe's table, over that of the recipe it names as its `base`."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}), as TOML must be") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    base = table.pop("base", None)
    location = Locations(path, text)
    if base is None:
        location.written = rename_keys(table, location)
        return table, location
    setting = f"{location('base')}: base = {show(base)}"
    require(isinstance(base, str), f'{setting}: expected the name of a recipe, such as base = "translate"')
    base_path = path.parent / base if base.endswith(".toml") else find_recipe(base)
    if base_path is None or not base_path.is_file():
        hint = nearest(base, shipped_recipes(), "regard list recipes")
        raise UserError(f"{setting}: neither a file in the same folder nor a built-in recipe{hint}")
    extending = (*extending, path.resolve())
    require(base_path.resolve() not in extending, f"{setting}: a recipe cannot be its own base")
    base_table, location.base = _read(base_path, extending)
    location.written = rename_keys(table, location, _family(base_table))
    return _merged(base_table, table), location


def _merged(base: Table, table: Table) -> Table:
    """A recipe's table over that of its base. A [model] with a family or `from` replaces the base's [model].

    One with a preset keeps only the family of the base. `output` and `origin` are never inherited.
    """
    merged = {key: value for key, value in base.items() if key not in ("output", "origin")}
    for key, value in table.items():
        inherited = base.get(key)
        if not isinstance(value, dict) or not isinstance(inherited, dict) or {"family", "from"} & value.keys():
            merged[key] = value
            continue
        if key == "train":
            inherited = _not_superseded(inherited, value)
        if "preset" in value:
            inherited = {name: inherited[name] for name in ("family",) if name in inherited}
        merged[key] = inherited | value
    return merged


def key_types(task: object) -> dict[str, Any]:
    """The types of a recipe's keys; its tables are those of the task, if that is known."""
    try:
        tables = options_of(str(task))._asdict()
    except UserError:  # reported after all overrides
        tables = {}
    return get_type_hints(Recipe) | tables


def _reject_other_tasks(table: Table, location: Callable[[str], str]) -> None:
    """A key of another task is an error; with its default, as earlier versions wrote it out, it is dropped."""
    task = table["task"]
    for section, kind in options_of(task)._asdict().items():
        options = table.setdefault(section, {})
        known = {option.name for option in fields(kind)}
        for name in [name for name in options if name not in known] if isinstance(options, dict) else ():
            tasks = owners(section, name)
            if not tasks:
                continue
            default = getattr(getattr(options_of(tasks[0]), section), name)
            require(
                not options[name] or options[name] == default,
                f"{location(f'{section}.{name}')}: {section}.{name} = {show(options[name])} is not an option of task = "
                f"'{task}': remove it; it is for {', '.join(tasks)}",
            )
            del options[name]


def _follow_teacher(table: Table) -> None:
    """A student starts from its teacher's weights unless the recipe sets others, and always has its tokenizer."""
    distil = table.get("distil")
    model = table.setdefault("model", {})
    teacher = distil.get("teacher") if isinstance(distil, dict) else None
    if not teacher or not isinstance(model, dict) or "from" in model:
        return
    if "family" not in model:
        table["model"] = {"from": teacher, **model}
    elif isinstance(tokenizer := table.setdefault("tokenizer", {}), dict):
        tokenizer.setdefault("folder", teacher)


def _family(table: Table) -> str:
    model = table.get("model")
    return str(model.get("family", "")) if isinstance(model, dict) else ""


def _replace_model(before: Table, table: Table, location: Locations, note: Callable[[str], None]) -> None:
    """Remove the recipe's [model] fields that do not fit the checkpoint or the family chosen by an override."""
    model = table.get("model")
    if not isinstance(model, dict):
        return
    if model.get("from") == "" and "model.from" in location.overridden:
        del model["from"]  # a new model
    overridden = {key.split(".")[1] for key in location.overridden if key.startswith("model.")}
    inherited = [name for name in before if name in model and name not in overridden]
    family, chosen = _family({"model": before}), _family(table)
    if "from" in model and "from" not in before:  # as in a recipe with a base
        dropped = inherited
        replacement = f"model.from = {show(model['from'])} replaces [model]; dropped"
    elif family and family != chosen:
        dropped = _unfit(model, [name for name in inherited if name not in MODEL_KEYS], location)
        replacement = f"model.family = '{chosen}' replaces '{family}'; unsupported fields and values are dropped"
    else:
        return
    table["model"] = {name: value for name, value in model.items() if name not in dropped}
    if dropped:
        note(f"{replacement}: {listed(f'{name} = {show(model[name])}' for name in dropped)}")


def _unfit(model: Table, inherited: list[str], location: Locations) -> list[str]:
    """The inherited fields that the family chosen by an override does not have; with a preset all of them."""
    from regard.models.registry import FAMILIES, accepts

    if model["family"] not in FAMILIES:
        return []
    preset = "model.preset" in location.overridden
    return [name for name in inherited if preset or not accepts(model["family"], name, model[name])]


def _not_superseded(train: Table, changes: Table) -> Table:
    """[train] without the keys that the changes exclude: `minutes = 5` replaces `max_steps`."""
    excluded = [name for group in EXCLUSIVE.values() if any(changes.get(name) for name in group) for name in group]
    excluded += ["min_steps"] if changes.get("epochs") else []
    return {name: value for name, value in train.items() if name not in excluded}


def _check(recipe: Recipe) -> None:
    """What cannot be checked key by key: infinite numbers, missing and contradicting keys."""
    sections = {name: vars(getattr(recipe, name)) for name in ("data", "train", "augment", "distil", "decode")}
    for section, options in (sections | {"model": recipe.model}).items():
        for name, value in options.items():
            require(not isinstance(value, float) or isfinite(value), f"{section}.{name} = {value}: must be finite")
    for key, seed in (("seed", recipe.seed), ("decode.seed", recipe.decode.seed)):
        require(0 <= seed < 2**63, f"{key} = {seed}: must be between 0 and 2⁶³ − 1")
    for meaning, group in EXCLUSIVE.items():
        choices = [f"train.{name} = {getattr(recipe.train, name)}" for name in group if getattr(recipe.train, name)]
        names = " or ".join(f"train.{name}" for name in group)
        require(bool(choices), f"{meaning} is missing: set {names}")
        repeated = f"{meaning} is set {len(choices)} times ({', '.join(choices)}): set one of {names}"
        require(len(choices) == 1, repeated)
    require(
        not recipe.train.patience or bool(recipe.data.validation),
        f"train.patience = {recipe.train.patience} needs data.validation: early stopping compares validation scores",
    )
    require(bool(recipe.data.train), "data.train is missing: a file, or with data.synthetic a number of samples")
    require(
        "family" in recipe.model or "from" in recipe.model,
        'model.family is missing: set e.g. family = "transformer", or from = "FOLDER" to start from a checkpoint',
    )
    heads = {"classify": ("new_head", "pooling"), "tag": ("new_head",)}
    allowed = {"from", "family", "depth", *ADAPTERS, *heads.get(recipe.task, ())}
    extra = sorted(recipe.model.keys() - allowed) if "from" in recipe.model else []
    for name in extra:
        close = get_close_matches(name, allowed, n=1, cutoff=0.8)
        require(not close, f"model.{name} is unknown; did you mean model.{', '.join(close)}?")
    scratch = f"or train from scratch with {FROM_SCRATCH}"
    removal = f"remove model.{', model.'.join(extra)}, {scratch}"
    require(not extra, f"model.from takes its sizes from the checkpoint: {removal}")
    pooling = recipe.model.get("pooling", "mean")
    require(
        "from" not in recipe.model or pooling in POOLINGS,
        f"model.pooling = {show(pooling)} is unknown{nearest(str(pooling), POOLINGS)}",
    )
    new_head = recipe.model.get("new_head", False)
    require(type(new_head) is bool, f"model.new_head = {show(new_head)} does not fit; expected true or false")
    require(
        not ({"from", "depth"} <= recipe.model.keys() and recipe.model.get("lora_rank")),
        "model.depth and model.lora_rank cannot be combined: an adapter needs all layers of the checkpoint",
    )
    lora = [name for name in ADAPTERS if name in recipe.model and "from" not in recipe.model]
    require(not lora, f"model.{', model.'.join(lora)}: an adapter needs a pre-trained model: set model.from")
    new_head = recipe.model.get("new_head", False)
    require(isinstance(new_head, bool), f"model.new_head = {show(new_head)} does not fit; expected true or false")
    for name in ("family", "preset", "from"):
        value = recipe.model.get(name, "")
        require(isinstance(value, str), f"model.{name} = {show(value)} does not fit; expected text")
