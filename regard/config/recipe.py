"""A recipe: a TOML file that says what to train, on which data, and how; read into frozen dataclasses."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from regard.config.aliases import rename_keys
from regard.config.options import (
    DataOptions,
    DecodeOptions,
    DistilOptions,
    TaskOptions,
    TokenizerOptions,
    TrainOptions,
    require,
)
from regard.config.recipe_files import find_recipe, is_shipped, shipped_recipes
from regard.config.schema import Locations, build, override, show, write, write_key
from regard.errors import UserError, nearest
from regard.tasks.registry import canonical, options_of, owners

__all__ = [
    "EXCLUSIVE", "DataOptions", "DecodeOptions", "DistilOptions", "Recipe", "TokenizerOptions",
    "TrainOptions", "load_recipe", "to_toml",
]  # fmt: skip

ADAPTERS = ("lora_rank", "lora_alpha", "lora_targets")  # keys of [model] that `from` allows

POOLINGS = ("cls", "mean")  # values of `pooling` with `from`

EXCLUSIVE = {
    "the size of a batch": ("batch_tokens", "batch_size"),
    "the length of the run": ("max_steps", "epochs", "minutes"),
}


@dataclass(frozen=True)
class Recipe:
    """A run. `model` holds `family`, `preset`, `from` and the fields of the family, checked where it is built."""

    task: str
    output: str  # the run folder, relative to the working directory
    seed: int = 1
    origin: str = ""  # the folder of the recipe file, in which data is looked for, also by the copy in the run folder
    data: DataOptions = field(default_factory=DataOptions)
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: dict[str, Any] = field(default_factory=dict)
    train: TrainOptions = field(default_factory=TrainOptions)
    distil: DistilOptions = field(default_factory=DistilOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or built-in name, apply `key.sub=value` overrides, and check everything."""
    path = _locate(name_or_path)
    table, location = _read(path)
    for assignment in sorted(
        overrides, key=lambda assignment: not assignment.startswith("task=")
    ):  # it decides what keys mean
        typed = assignment.partition("=")[0].strip()
        key = override(table, assignment, _with_tables_of(table.get("task")))
        first = location.overridden.setdefault(key, typed)
        require(first == typed, f"command line: '{first}' and '{typed}' are the same key: give one of them")
    _clear_superseded(table, set(location.overridden))
    _follow_teacher(table)
    table.setdefault("output", f"runs/{path.stem}")
    base_dir = Path.cwd() if is_shipped(path) else path.resolve().parent  # a built-in recipe has no data next to it
    table.setdefault("origin", str(base_dir))
    require("task" in table, f'{path}: `task` is missing, such as task = "translate"')
    schema = _with_tables_of(table["task"], location)
    _reject_other_tasks(table, location)
    built = build(schema, table, "", location)
    recipe = Recipe(**{option.name: getattr(built, option.name) for option in fields(Recipe)})
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
        sections.append("\n".join([f"[{option.name}]", *lines]))
    return "\n\n".join(["\n".join(top), *sections]) + "\n"


def _locate(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    shipped = find_recipe(str(name_or_path)) if path.suffix != ".toml" else None
    if shipped:
        return shipped
    if not path.is_file():
        raise UserError(
            f"no recipe '{name_or_path}': no such file, nor one that ships{nearest(path.stem, shipped_recipes())}"
        )
    return path


def _read(path: Path, extending: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Locations]:
    """A recipe's table, over that of the recipe it names as its `base`."""
    text = _text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    base = table.pop("base", None)
    location = Locations(path, text)
    if base is None:
        location.written = rename_keys(table, location)
        return table, location
    require(
        isinstance(base, str), f'{location("base")}: base = {show(base)}: name a recipe, such as base = "translate"'
    )
    base_path = path.parent / base if base.endswith(".toml") else find_recipe(base)
    if base_path is None or not base_path.is_file():
        raise UserError(
            f"{location('base')}: base = {show(base)}: no such file beside this one, nor a recipe that ships"
            f"{nearest(base, shipped_recipes())}"
        )
    extending = (*extending, path.resolve())
    require(
        base_path.resolve() not in extending,
        f"{location('base')}: base = {show(base)}: a recipe cannot stand on itself",
    )
    base_table, location.base = _read(base_path, extending)
    location.written = rename_keys(table, location, family=str(base_table.get("model", {}).get("family")))
    return _merged(base_table, table), location


def _merged(base: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
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


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}), as TOML must be") from None


@cache
def _recipe_type(task: str) -> type[Recipe]:
    """Recipe, with the tables of a task as its types."""
    tables = options_of(task)._asdict()
    options = [(name, kind, field(default_factory=kind)) for name, kind in tables.items()]
    return make_dataclass("Recipe", options, bases=(Recipe,), frozen=True)


def _with_tables_of(task: Any, location: Callable[[str], str] | None = None) -> type[Recipe]:
    """The type of a task's recipes; where the task is unknown, an error at its `location`, or the common type."""
    try:
        return _recipe_type(canonical(task)) if isinstance(task, str) else Recipe
    except UserError as error:
        if location is None:
            return Recipe
        raise UserError(f"{location('task')}: {error}") from None


def _reject_other_tasks(table: dict[str, Any], location: Callable[[str], str]) -> None:
    """A key of another task is an error; with its default, as earlier versions wrote it out, it is dropped."""
    task = canonical(table["task"])
    table["task"] = task
    for section in TaskOptions._fields:
        options = table.get(section)
        if not isinstance(options, dict):
            continue
        known = {option.name for option in fields(getattr(options_of(task), section))}
        for name in [name for name in options if name not in known]:
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


def _follow_teacher(table: dict[str, Any]) -> None:
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


def _clear_superseded(table: dict[str, Any], overridden: set[str]) -> None:
    train = table.get("train")
    if isinstance(train, dict):
        changes = {name: value for name, value in train.items() if f"train.{name}" in overridden}
        table["train"] = _not_superseded(train, changes) | changes


def _not_superseded(train: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """[train] without the keys that the changes exclude: `minutes = 5` replaces `max_steps`."""
    excluded = [name for group in EXCLUSIVE.values() if any(changes.get(name) for name in group) for name in group]
    return {name: value for name, value in train.items() if name not in excluded}


def _check(recipe: Recipe) -> None:
    """What cannot be checked key by key: infinite numbers, missing and contradicting keys."""
    sections = {"data": vars(recipe.data), "model": recipe.model, "train": vars(recipe.train)}
    sections |= {"distil": vars(recipe.distil)}
    for section, options in (sections | {"decode": vars(recipe.decode)}).items():
        for name, value in options.items():
            require(not isinstance(value, float) or isfinite(value), f"{section}.{name} = {value}: must be finite")
    for key, seed in (("seed", recipe.seed), ("decode.seed", recipe.decode.seed)):
        require(0 <= seed < 2**63, f"{key} = {seed}: must lie within 0 … 2⁶³ − 1")
    for meaning, group in EXCLUSIVE.items():
        choices = [f"train.{name} = {getattr(recipe.train, name)}" for name in group if getattr(recipe.train, name)]
        names = " or ".join(f"train.{name}" for name in group)
        require(bool(choices), f"{meaning} is missing: give {names}")
        repeated = f"{meaning} is given {len(choices)} times ({', '.join(choices)}): give one of {names}"
        require(len(choices) == 1, repeated)
    require(
        not recipe.train.patience or bool(recipe.data.validation),
        f"train.patience = {recipe.train.patience} needs data.validation: without it nothing is scored",
    )
    require(bool(recipe.data.train), "data.train is missing: a file, or a number of samples with data.synthetic")
    require(
        "family" in recipe.model or "from" in recipe.model,
        'model.family is missing, such as family = "transformer" (or from = "folder" for weights to start from)',
    )
    allowed = {"from", "family", "depth", *ADAPTERS, *(["pooling"] if recipe.task == "classify" else [])}
    extra = sorted(recipe.model.keys() - allowed) if "from" in recipe.model else []
    for name in extra:
        close = get_close_matches(name, allowed, n=1, cutoff=0.8)
        require(not close, f"model.{name} is unknown; did you mean model.{', '.join(close)}?")
    require(not extra, f"model.from takes its shape from the folder: remove model.{', model.'.join(extra)}")
    pooling = recipe.model.get("pooling", "mean")
    require(
        "from" not in recipe.model or pooling in POOLINGS,
        f"model.pooling = {show(pooling)} is unknown{nearest(str(pooling), POOLINGS)}",
    )
    require(
        not ({"from", "depth"} <= recipe.model.keys() and recipe.model.get("lora_rank")),
        "model.depth and model.lora_rank: an adapter is for the layers that the folder has; give one of the two",
    )
    lora = [name for name in ADAPTERS if name in recipe.model and "from" not in recipe.model]
    require(not lora, f"model.{', model.'.join(lora)}: an adapter stands on weights that are there: give model.from")
    for name in ("family", "preset", "from"):
        value = recipe.model.get(name, "")
        require(isinstance(value, str), f"model.{name} = {show(value)} does not fit; expected text")
