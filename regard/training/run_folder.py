"""A run folder: recipe.toml as resolved, environment.json, metrics.jsonl, and the checkpoints."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.config.recipe import Recipe, load_recipe, to_toml
from regard.errors import UserError
from regard.runtime import machine
from regard.training import checkpoint
from regard.training.distributed import rank
from regard.training.resume import Progress

try:
    import fcntl
except ImportError:  # Windows: there a run is not guarded against a second process
    fcntl = None

LOCK = ".lock"

FREE = ("output", "origin", "decode", "train")  # sections that may change while a run goes on; of train all but these:

SETTLED = ("batch_tokens", "batch_size", "gradient_accumulation_steps", "average_decay", "score", "freeze")


def resume_command(folder: Path) -> str:
    return f"regard resume {shlex.quote(str(folder))}"


def refuse_existing(folder: Path) -> None:
    """A run is never overwritten; called before the work of preparing data begins."""
    if rank() != 0:
        return
    if (folder / "recipe.toml").exists():
        raise UserError(f"{folder} is a run already; go on with `{resume_command(folder)}`, or give another output=…")
    begun = f"{checkpoint.ASIDE}recipe.toml"  # a start that was killed at once
    if folder.is_file() or (folder.is_dir() and any(path.name != begun for path in folder.iterdir())):
        raise UserError(f"{folder} exists and is not a run; give another output=…")


def start_run(recipe: Recipe) -> Path:
    """Make the run folder and write the resolved recipe into it."""
    folder = Path(recipe.output)
    refuse_existing(folder)
    if rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write_atomically(folder / "recipe.toml", to_toml(recipe))
    return folder


def open_run(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of an existing run, as it was resolved; of [train] it may be changed what is not settled."""
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder: it has no recipe.toml")
    for key in (each.partition("=")[0].strip() for each in overrides):
        section, _, name = key.partition(".")
        if section != "train" or name in (*SETTLED, "", "threads"):
            raise UserError(f"{key} is settled when a run begins; what can change is such as train.max_steps=3000")
    return load_recipe(folder / "recipe.toml", overrides)


def rewrite_recipe(folder: Path, recipe: Recipe) -> None:
    """The recipe as it holds from now on."""
    if rank() == 0:
        checkpoint.write_atomically(folder / "recipe.toml", to_toml(recipe))


def settled(recipe: Recipe) -> dict[str, Any]:
    """What must stay the same for as long as a run lasts, by key; files may move, their contents are fingerprinted."""
    sections = {name: value for name, value in asdict(recipe).items() if name not in FREE}
    sections["train"] = {name: getattr(recipe.train, name) for name in SETTLED}
    flat: dict[str, Any] = {}
    for section, value in sections.items():
        flat |= (
            {f"{section}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {section: value}
        )
    for part in ("data.train", "data.validation", "data.test"):
        flat[part] = "a file" if isinstance(flat[part], str) and flat[part] else flat[part]
    return json.loads(json.dumps(flat))  # as it will be read back


def _refuse_changes(folder: Path, then: Mapping[str, Any], recipe: Recipe) -> None:
    """A key that there was none of when the run began had its default."""
    now = settled(recipe)
    then = {**settled(Recipe(recipe.task, recipe.output)), **then}
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            raise UserError(
                f"{folder / 'recipe.toml'}: {key} = {now.get(key, 'nothing')}, but the run began with "
                f"{then.get(key, 'nothing')}, and it is settled then: put it back, or begin another run"
            )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """No second process trains in the folder meanwhile; a kill leaves the file, but not the lock."""
    if rank() != 0 or fcntl is None:
        yield
        return
    path = folder / LOCK
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise UserError(f"{folder} is being trained by process {owner or 'unknown'}") from None
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


def settle_environment(
    folder: Path, threads: int, fingerprint: Mapping[str, str], recipe: Recipe
) -> tuple[int, list[str]]:
    """Record what the run is and runs on; on resume give the recorded threads, and warn of what differs."""
    path = folder / "environment.json"
    now = {**machine.environment(threads, fingerprint), "recipe": settled(recipe)}
    if not path.is_file():
        if rank() == 0:
            checkpoint.write_atomically(path, json.dumps(now, indent=2, ensure_ascii=False) + "\n")
        return threads, []
    then = json.loads(path.read_text(encoding="utf-8"))
    _refuse_changes(folder, then.get("recipe", now["recipe"]), recipe)
    changed = [name for name, digest in then["data"].items() if now["data"].get(name) != digest]
    if changed:
        raise UserError(f"{folder} cannot go on: its data has changed since it began ({', '.join(changed)})")
    warnings = []
    if then["threads"] > now["cores"]:
        warnings.append(f"the run began with {then['threads']} threads, here are {now['cores']} cores: it will be slow")
    for name in ("cpu", "cuda", "packages", "kernels", "processes"):
        if name in then and then[name] != now[name]:
            warnings.append(
                f"{name} differ from the run's beginning ({then[name]} → {now[name]}): not bit by bit the same"
            )
    return then["threads"], warnings


class MetricsLog:
    """metrics.jsonl, a line per event, and TensorBoard on request; a resume drops what it will do again."""

    def __init__(self, folder: Path, progress: Progress, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        kept = []
        if self.path.is_file():
            lines = [line for line in map(_parse, self.path.read_text(encoding="utf-8").splitlines()) if line]
            kept = [line for line in lines if _was_before(line, progress)]
            checkpoint.write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self.board = _open_board(folder, progress.step) if tensorboard else None
        for line in kept:  # the board forgets this step too, of which an evaluation may still be missing
            if line["step"] == progress.step:
                self._show(line.pop("step"), line)

    def write(self, step: int, event: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **event}) + "\n")
        self._show(step, event)

    def _show(self, step: int, event: Mapping[str, Any]) -> None:
        if self.board:
            for name, value in _flatten(event):
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        if self.board:
            self.board.close()


def _parse(line: str) -> dict[str, Any] | None:
    """A line, or nothing where a kill cut it short."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _was_before(line: dict[str, Any], progress: Progress) -> bool:
    return line["step"] <= (progress.evaluated if "validation" in line else progress.step)


def _flatten(event: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in event.items():
        if isinstance(value, Mapping):
            found += _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found.append((f"{prefix}{name}", float(value)))
    return found


def _open_board(folder: Path, step: int) -> Any:
    """TensorBoard's writer; what it was told of this step and later ones no longer holds."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError('train.tensorboard needs TensorBoard: pip install "regard[track]"') from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
