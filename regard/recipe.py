"""A recipe: a TOML file that says what to train, on which data, and how; read into frozen dataclasses."""

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from regard.errors import UserError, nearest
from regard.schema import Places, build, override, show, write, write_key

SHIPPED = Path(__file__).parent / "recipes"
DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {  # of a task, where they differ from those below
    "classify": {
        "data": {"max_length": 0},
        "tokenizer": {"kind": "byte_bpe"},
        "train": {"schedule": "cosine", "warmup_steps": 50, "betas": [0.9, 0.999], "label_smoothing": 0.0},
    },
    "generate": {
        "data": {"max_length": 0},
        "tokenizer": {"kind": "byte_bpe"},
        "train": {
            "schedule": "cosine",
            "warmup_steps": 100,
            "weight_decay": 0.1,
            "betas": [0.9, 0.95],
            "label_smoothing": 0.0,
        },
    },
}
ADAPTERS = ("lora_rank", "lora_alpha", "lora_targets")  # keys of [model] beside `from`
EXCLUSIVE = {
    "the size of a batch": ("batch_tokens", "batch_size"),
    "the length of the run": ("max_steps", "epochs", "minutes"),
}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


@dataclass(frozen=True)
class DataOptions:
    """Where samples come from: files, or counts where `generate` makes them; a fraction is held out of `train`."""

    train: str | int = ""
    validation: str | int | float = ""
    test: str | int | float = ""
    generate: str = ""
    source: str = ""  # names of sides or columns
    target: str = ""
    columns: tuple[str, ...] = ()  # names for a TSV without a header
    prefix: str = ""  # the column whose value becomes a first token "<value>"
    text: str = ""  # the column of a language model's documents, or of texts to be labelled,
    text2: str = ""  # and of those to be read beside them
    label: str = ""
    label_until: str = ""  # a label ends before this mark: "NUM" of "NUM:date"
    split_by: str = "source"  # equal values of this column never lie in two parts
    max_length: int = 256  # tokens; longer samples are skipped and counted; 0 = as many as the model reads

    def __post_init__(self) -> None:
        _require(self.max_length >= 0, f"data.max_length = {self.max_length}: must be 0 or more")
        for name in ("train", "validation", "test"):
            value = getattr(self, name)
            if self.generate:
                _require(
                    isinstance(value, int) or value == "",
                    f"data.{name} = {show(value)}: with `generate` it is a number of samples, such as 1000",
                )
            if isinstance(value, float):
                _require(0 < value < 1, f"data.{name} = {value}: a part held out of train must lie between 0 and 1")
            elif isinstance(value, int):
                _require(value >= 0, f"data.{name} = {value}: a number of samples cannot be negative")
                _require(
                    bool(self.generate) or value == 0,
                    f"data.{name} = {value}: a number of samples needs `generate`; otherwise name a file",
                )


@dataclass(frozen=True)
class TokenizerOptions:
    """How text is cut into tokens; `joint` is one vocabulary for source and target."""

    kind: Literal["bpe", "unigram", "wordpiece", "words", "characters", "bytes", "byte_bpe"] = "bpe"
    vocab_size: int = 8000
    joint: bool = True
    lowercase: bool = False
    min_frequency: int = 2

    def __post_init__(self) -> None:
        _require(self.vocab_size >= 5, f"tokenizer.vocab_size = {self.vocab_size}: must be at least 5")
        _require(self.min_frequency >= 1, f"tokenizer.min_frequency = {self.min_frequency}: must be at least 1")
        _require(
            not (self.lowercase and self.kind in ("bytes", "byte_bpe")),
            f"tokenizer.lowercase = true: kind = '{self.kind}' keeps text as it is; possible with the other kinds",
        )


@dataclass(frozen=True)
class TrainOptions:
    """How the weights are found: batches, length of the run, AdamW and its schedule, evaluation and checkpoints."""

    batch_tokens: int = 0  # one of these two
    batch_size: int = 0
    max_steps: int = 0  # one of these three
    epochs: float = 0.0
    minutes: float = 0.0
    learning_rate: float = 5e-4
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    warmup_steps: int = 400
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0  # 0 = no clipping
    gradient_accumulation_steps: int = 1
    average_decay: float = 0.0  # of the weights' moving average; 0 = off
    auxiliary: float = 0.0  # how much the text's own loss counts beside that of its label
    patience: int = 0  # evaluations without a better score before the run stops; 0 = off
    score: Literal["auto", "bleu", "chrf", "exact", "loss", "accuracy", "f1"] = (
        "auto"  # in it the best checkpoint is best
    )
    eval_steps: int = 500
    eval_samples: int = 1000  # validation samples that are answered at each evaluation, from the first on
    save_steps: int = 500
    log_steps: int = 20
    keep: int = 3  # newest checkpoints; the best is always kept
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    threads: int = 0  # 0 = OMP_NUM_THREADS, else the physical cores
    tensorboard: bool = False

    def __post_init__(self) -> None:
        at_least_one = ("gradient_accumulation_steps", "eval_steps", "eval_samples", "save_steps", "log_steps", "keep")
        not_negative = ("batch_tokens", "batch_size", "max_steps", "epochs", "minutes", "learning_rate", "warmup_steps")
        not_negative += ("weight_decay", "max_grad_norm", "patience", "threads", "auxiliary")
        for name in at_least_one:
            _require(getattr(self, name) >= 1, f"train.{name} = {getattr(self, name)}: must be at least 1")
        for name in not_negative:
            _require(getattr(self, name) >= 0, f"train.{name} = {getattr(self, name)}: must be 0 or more")
        for name in ("label_smoothing", "average_decay"):
            value = getattr(self, name)
            _require(0 <= value < 1, f"train.{name} = {value}: must be at least 0 and below 1")
        _require(all(0 <= beta < 1 for beta in self.betas), f"train.betas = {list(self.betas)}: each in [0, 1)")


@dataclass(frozen=True)
class DecodeOptions:
    """How output is searched for: greedy (one beam, temperature 0), beam search, or sampling."""

    num_beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # taken from the logit of each token already written,
    frequency_penalty: float = 0.0  # and this as often as it was written
    logit_bias: dict[str, float] = field(default_factory=dict)  # id → what is added to its logit
    stop: tuple[str, ...] = ()  # texts at which an answer ends; they are not part of it
    max_new_tokens: int = 0  # 0 = the task's default
    min_new_tokens: int = 0
    temperature: float = 0.0  # 0 = no sampling
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_return_sequences: int = 1
    suppress_tokens: tuple[int, ...] = ()  # ids that are never written
    seed: int = 0

    def __post_init__(self) -> None:
        _require(all(self.stop), "decode.stop holds an empty text, at which every answer would end")
        for token, bias in self.logit_bias.items():
            _require(
                token.isdecimal() and isinstance(bias, int | float) and isfinite(bias),
                f"decode.logit_bias: {show(token)} = {bias}: expected a token's id and a number, such as 13 = -5.0",
            )
        for name in ("num_beams", "num_return_sequences"):
            _require(getattr(self, name) >= 1, f"decode.{name} = {getattr(self, name)}: must be at least 1")
        for name in ("no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "temperature", "top_k", "seed"):
            _require(getattr(self, name) >= 0, f"decode.{name} = {getattr(self, name)}: must be 0 or more")
        _require(0 < self.top_p <= 1, f"decode.top_p = {self.top_p}: must be above 0 and at most 1")
        _require(0 <= self.min_p <= 1, f"decode.min_p = {self.min_p}: must be between 0 and 1")
        _require(self.repetition_penalty > 0, f"decode.repetition_penalty = {self.repetition_penalty}: must be above 0")
        for name in ("length_penalty", "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature"):
            _require(isfinite(getattr(self, name)), f"decode.{name} = {getattr(self, name)}: must be finite")
        _require(
            not self.max_new_tokens or self.min_new_tokens <= self.max_new_tokens,
            f"decode.min_new_tokens = {self.min_new_tokens} is more than decode.max_new_tokens = {self.max_new_tokens}",
        )
        _require(
            self.temperature > 0 or self.num_return_sequences <= self.num_beams,
            f"decode.num_return_sequences = {self.num_return_sequences} needs as many num_beams (or a temperature)",
        )

    @property
    def forbids(self) -> bool:
        """Whether it may happen that no token is allowed to follow."""
        return bool(self.no_repeat_ngram_size or self.min_new_tokens or self.suppress_tokens)


@dataclass(frozen=True)
class Recipe:
    """A whole run. `model` holds `family`, `preset`, `from` and the family's own fields, checked where it is built."""

    task: str
    output: str  # the run folder, relative to the working directory
    seed: int = 1
    origin: str = (
        ""  # the folder beside whose files the data is looked for, also after the recipe was copied to its run
    )
    data: DataOptions = field(default_factory=DataOptions)
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: dict[str, Any] = field(default_factory=dict)
    train: TrainOptions = field(default_factory=TrainOptions)
    decode: DecodeOptions = field(default_factory=DecodeOptions)


def shipped_recipes() -> list[str]:
    """The names that `regard train NAME` knows without a file."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def about(name: str) -> str:
    """What a shipped recipe is for, in the words of its first lines."""
    lines = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    said = itertools.takewhile(lambda line: line.startswith("# ") and not line.startswith(("#   ", "# Result")), lines)
    return " ".join(line.removeprefix("# ") for line in said)


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or shipped name and apply `key.sub=value` overrides; all is checked here."""
    path = _locate(name_or_path)
    table, places = _read(path)
    for each in overrides:
        places.overridden.add(override(table, each, Recipe))
    _clear_superseded(table, places.overridden)
    _fill_in(table)
    table.setdefault("output", f"runs/{path.stem}")
    beside = Path.cwd() if path.parent == SHIPPED else path.resolve().parent  # no data lies beside what ships
    table.setdefault("origin", str(beside))
    _require("task" in table, f'{path}: `task` is missing, such as task = "translate"')
    recipe = build(Recipe, table, "", places)
    try:
        _check_whole(recipe)
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
    shipped = SHIPPED / f"{name_or_path}.toml"
    if path.suffix != ".toml" and path.name == str(name_or_path) and shipped.is_file():
        return shipped
    if not path.is_file():
        raise UserError(
            f"no recipe '{name_or_path}': no such file, nor one that ships{nearest(path.stem, shipped_recipes())}"
        )
    return path


def _read(path: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Places]:
    """A recipe's table, over that of the recipe it names as its `base`."""
    text = _text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    base = table.pop("base", None)
    places = Places(path, text)
    if base is None:
        return table, places
    _require(isinstance(base, str), f'{places("base")}: base = {show(base)}: name a recipe, such as base = "translate"')
    below = path.parent / base if base.endswith(".toml") else SHIPPED / f"{base}.toml"
    _require(
        below.is_file(),
        f"{places('base')}: base = {show(base)}: no such file beside this one, nor a recipe that ships"
        f"{nearest(base, shipped_recipes())}",
    )
    above = (*above, path.resolve())
    _require(below.resolve() not in above, f"{places('base')}: base = {show(base)}: a recipe cannot stand on itself")
    beneath, places.base = _read(below, above)
    return _over(beneath, table), places


def _over(below: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Keys of one table over another's; a [model] with a family (or weights) of its own takes none of the other's.

    With a preset of its own it takes the family alone. Where a run goes, and where its data lies, is each recipe's own.
    """
    merged = {key: value for key, value in below.items() if key not in ("output", "origin")}
    for key, value in table.items():
        under = below.get(key)
        if not isinstance(value, dict) or not isinstance(under, dict) or {"family", "from"} & value.keys():
            merged[key] = value
            continue
        if key == "train":
            under = _not_superseded(under, value)
        if "preset" in value:  # sizes of its own
            under = {name: under[name] for name in ("family",) if name in under}
        merged[key] = under | value
    return merged


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}), as TOML must be") from None


def _fill_in(table: dict[str, Any]) -> None:
    """The task's own defaults, where the recipe says nothing."""
    task = table.get("task")
    for section, values in DEFAULTS.get(task if isinstance(task, str) else "", {}).items():
        if isinstance(given := table.setdefault(section, {}), dict):
            table[section] = values | given


def _clear_superseded(table: dict[str, Any], overridden: set[str]) -> None:
    train = table.get("train")
    if isinstance(train, dict):
        given = {name: value for name, value in train.items() if f"train.{name}" in overridden}
        table["train"] = _not_superseded(train, given) | given


def _not_superseded(train: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """[train] without what these keys replace: `minutes = 5` stands for max_steps, since they are one choice."""
    gone = [name for group in EXCLUSIVE.values() if any(given.get(name) for name in group) for name in group]
    return {name: value for name, value in train.items() if name not in gone}


def _check_whole(recipe: Recipe) -> None:
    """What single keys cannot show: numbers without bounds, missing and contradicting keys."""
    sections = {"data": vars(recipe.data), "model": recipe.model, "train": vars(recipe.train)}
    for section, options in (sections | {"decode": vars(recipe.decode)}).items():
        for name, value in options.items():
            _require(not isinstance(value, float) or isfinite(value), f"{section}.{name} = {value}: must be finite")
    for key, seed in (("seed", recipe.seed), ("decode.seed", recipe.decode.seed)):
        _require(0 <= seed < 2**63, f"{key} = {seed}: must lie within 0 … 2⁶³ − 1")
    for meaning, group in EXCLUSIVE.items():
        given = [f"train.{name} = {getattr(recipe.train, name)}" for name in group if getattr(recipe.train, name)]
        names = " or ".join(f"train.{name}" for name in group)
        _require(bool(given), f"{meaning} is missing: give {names}")
        _require(len(given) == 1, f"{meaning} is given {len(given)} times ({', '.join(given)}): give one of {names}")
    _require(
        not recipe.train.patience or bool(recipe.data.validation),
        f"train.patience = {recipe.train.patience} needs data.validation: without it nothing is scored",
    )
    _require(bool(recipe.data.train), "data.train is missing: a file, or a number of samples with data.generate")
    _require(
        "family" in recipe.model or "from" in recipe.model,
        'model.family is missing, such as family = "transformer" (or from = "folder" for weights to start from)',
    )
    extra = sorted(recipe.model.keys() - {"from", "family", *ADAPTERS}) if "from" in recipe.model else []
    _require(not extra, f"model.from takes its shape from the folder: remove model.{', model.'.join(extra)}")
    lora = [name for name in ADAPTERS if name in recipe.model and "from" not in recipe.model]
    _require(not lora, f"model.{', model.'.join(lora)}: an adapter stands on weights that are there: give model.from")
    for name in ("family", "preset", "from"):
        value = recipe.model.get(name, "")
        _require(isinstance(value, str), f"model.{name} = {show(value)} does not fit; expected text")
