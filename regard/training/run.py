"""A run folder: recipe.toml as resolved, environment.json, metrics.jsonl, and the checkpoints."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.recipe import Recipe, load_recipe, to_toml
from regard.training import checkpoint, machine
from regard.training.distributed import rank
from regard.training.state import Progress


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


def open_run(folder: Path) -> Recipe:
    """The recipe of an existing run, as it was resolved."""
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder: it has no recipe.toml")
    return load_recipe(folder / "recipe.toml")


def settle_environment(folder: Path, threads: int, fingerprint: Mapping[str, str]) -> tuple[int, list[str]]:
    """Record what the run runs on; on resume give the recorded threads, and warn of what differs."""
    path = folder / "environment.json"
    now = machine.environment(threads, fingerprint)
    if not path.is_file():
        if rank() == 0:
            checkpoint.write_atomically(path, json.dumps(now, indent=2, ensure_ascii=False) + "\n")
        return threads, []
    then = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name, digest in then["data"].items() if now["data"].get(name) != digest]
    if changed:
        raise UserError(f"{folder} cannot go on: its data has changed since it began ({', '.join(changed)})")
    warnings = []
    if then["threads"] > now["cores"]:
        warnings.append(f"the run began with {then['threads']} threads, here are {now['cores']} cores: it will be slow")
    for name in ("cpu", "cuda", "packages", "processes"):
        if then[name] != now[name]:
            warnings.append(
                f"{name} differ from the run's beginning ({then[name]} → {now[name]}): not bit by bit the same"
            )
    return then["threads"], warnings


class Journal:
    """metrics.jsonl, a line per event, and TensorBoard on request; a resume drops what it will do again."""

    def __init__(self, folder: Path, progress: Progress, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        if self.path.is_file():
            lines = [line for line in map(_parse, self.path.read_text(encoding="utf-8").splitlines()) if line]
            kept = [line for line in lines if _was_before(line, progress)]
            checkpoint.write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self.board = _open_board(folder) if tensorboard else None

    def write(self, step: int, event: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **event}) + "\n")
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


def _open_board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError('train.tensorboard needs TensorBoard: pip install "regard[track]"') from None
    return SummaryWriter(str(folder / "tensorboard"))
