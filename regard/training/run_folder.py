"""A run folder: recipe.toml as resolved, environment.json, metrics.jsonl, and the checkpoints."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from regard.config.aliases import canonical_key, canonical_value
from regard.config.recipe import Recipe, load_recipe, to_toml
from regard.errors import UserError
from regard.interop.model_path import find_folder
from regard.runtime import machine
from regard.tasks.registry import options_of
from regard.training import checkpoint
from regard.training.distributed import rank

try:
    import fcntl
except ImportError:  # Windows: there a run is not guarded against a second process
    fcntl = None

MUTABLE = ("output", "origin", "decode", "train")  # sections that may change between resumes; of train all but these:

IMMUTABLE_TRAIN = ("batch_tokens", "batch_size", "gradient_accumulation_steps", "ema_decay", "score", "freeze")


def resume_command(folder: Path) -> str:
    return f"regard resume {shlex.quote(str(folder))}"


def refuse_existing(folder: Path) -> None:
    """A run is never overwritten; called before the data is prepared."""
    if rank() != 0:
        return
    if (folder / "recipe.toml").exists():
        command = resume_command(folder)
        raise UserError(f"{folder} is already a run: resume it with `{command}`, or set another output=…")
    unfinished = f"{checkpoint.ASIDE}recipe.toml"  # of a start that was killed at once
    if folder.is_file() or (folder.is_dir() and any(path.name != unfinished for path in folder.iterdir())):
        raise UserError(f"the output folder {folder} exists and is not a run: set another output=…")


def start_run(recipe: Recipe) -> Path:
    """Make the run folder and write the resolved recipe into it."""
    folder = Path(recipe.output)
    refuse_existing(folder)
    write_recipe(folder, recipe)
    return folder


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """The resolved recipe of the run, new or changed on resume."""
    if rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(folder / "recipe.toml", to_toml(recipe))


def open_run(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The resolved recipe of an existing run; only mutable keys of [train] can be overridden."""
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder: expected the `output` of a training, with a recipe.toml")
    for override in overrides:
        key = override.partition("=")[0].strip()
        section, _, name = key.partition(".")
        if section != "train" or name in (*IMMUTABLE_TRAIN, "", "threads"):
            raise UserError(
                f"{key} cannot be changed on resume. Can be: length (train.max_steps=3000), train.learning_rate, "
                "train.schedule, evaluation and saving; otherwise start a new run with another output=…"
            )
    return load_recipe(folder / "recipe.toml", overrides)


def immutable_options(recipe: Recipe) -> dict[str, object]:
    """The options that must not change during a run, by key; files may move, since their contents are fingerprinted."""
    sections = {name: value for name, value in asdict(recipe).items() if name not in MUTABLE}
    sections["train"] = {name: getattr(recipe.train, name) for name in IMMUTABLE_TRAIN}
    options: dict[str, object] = {}
    for section, value in sections.items():
        if isinstance(value, dict):
            options |= {f"{section}.{name}": option for name, option in value.items()}
        else:
            options[section] = value
    for split in ("data.train", "data.validation", "data.test"):
        options[split] = "a file" if isinstance(options[split], str) and options[split] else options[split]
    return json.loads(json.dumps(options))  # as it will be read back


def check_environment(
    folder: Path, threads: int, fingerprint: Mapping[str, str], recipe: Recipe
) -> tuple[int, list[str]]:
    """Record options, data and machine; on resume refuse changes, give the recorded threads and warnings."""
    path = folder / "environment.json"
    now = {**machine.environment(threads, fingerprint), "recipe": immutable_options(recipe)}
    if not path.is_file():
        if rank() == 0:
            checkpoint.write_atomically(path, json.dumps(now, indent=2, ensure_ascii=False) + "\n")
        return threads, []
    then = json.loads(path.read_text(encoding="utf-8"))
    _refuse_changes(folder, then.get("recipe", now["recipe"]), recipe)
    changed = [name for name, digest in then["data"].items() if now["data"].get(name) != digest]
    if changed:
        raise UserError(f"cannot resume {folder}: these data files changed since it started: {', '.join(changed)}")
    warnings = []
    if then["threads"] > now["cores"]:
        problem = f"the run started with {then['threads']} threads, this machine has {now['cores']} cores"
        warnings.append(f"{problem}: it will be slow")
    for name in ("cpu", "cuda", "packages", "kernels", "onednn_linear", "processes"):
        if name in then and then[name] != now[name]:
            change = f"{name} differ from the start of the run ({then[name]} → {now[name]})"
            warnings.append(f"{change}: results will not be bit-identical")
    return then["threads"], warnings


def _refuse_changes(folder: Path, then: Mapping[str, object], recipe: Recipe) -> None:
    """A key that is not recorded had its default. Earlier versions also recorded the keys of other tasks."""
    now = immutable_options(recipe)
    tables = options_of(recipe.task)
    default = Recipe(recipe.task, recipe.output, data=tables.data(), tokenizer=tables.tokenizer(), train=tables.train())
    family = str(recipe.model.get("family", ""))
    recorded = {canonical_key(key, family): value for key, value in then.items()}
    recorded = {key: canonical_value(key, value) for key, value in recorded.items()}
    others = {key for key in recorded.keys() - now.keys() if not key.startswith("model.")}
    then = {**immutable_options(default), **{key: recorded[key] for key in recorded.keys() - others}}
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise UserError(
                f"{folder / 'recipe.toml'}: {key} = {now.get(key, 'nothing')}, but the run started with "
                f"{then.get(key, 'nothing')}; it cannot be changed on resume: restore it, or start a new run"
            )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Only one process trains in the folder; after a kill the file remains, but not the lock."""
    if rank() != 0 or fcntl is None:
        yield
        return
    path = folder / ".lock"
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise UserError(f"{folder} is being trained by process {owner or 'unknown'}: wait, or stop it") from None
        except OSError:  # a file system without locks
            break
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                break
        file.close()  # its last owner removed it between our opening and our locking: again
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class ModelPath(NamedTuple):
    """A model's folder, the run it belongs to if any, and the problems of better checkpoints that were skipped."""

    folder: Path
    run: Path | None
    refused: list[str]


def find_model(path: str | Path) -> ModelPath:
    """The best checkpoint of a run folder, or the folder itself."""
    folder = find_folder(path)
    if (folder / "recipe.toml").is_file():
        best, refused = checkpoint.best(folder)
        return ModelPath(best, folder, refused)
    if (folder / checkpoint.MANIFEST).is_file():
        checkpoint.verify(folder)
    in_run = (folder.parent / "recipe.toml").is_file() and folder.name.startswith("checkpoint-")
    return ModelPath(folder, folder.parent if in_run else None, [])
