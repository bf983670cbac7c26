"""Checkpoints that are complete or absent: written aside, synced, hashed in a manifest written last, then renamed.

run/checkpoint-500/   the model folder, training.safetensors, training.json, manifest.json
run/best.json         {"step": 500, "score": 38.2}
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from regard.data.cache import hash_file
from regard.errors import UserError

MANIFEST = "manifest.json"
ASIDE = ".unfinished-"  # what is being written, replaced or deleted; removed at the next start
REQUIRED = ("config.json", "model.safetensors", "training.safetensors", "training.json")
UNTOUCHED = "the checkpoints before it are untouched"
ADAPTER = "adapter_model.safetensors"  # in place of the full model


def folder_of(run: Path, step: int) -> Path:
    return run / f"checkpoint-{step}"


def steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, complete or not, oldest first."""
    names = (path.name.removeprefix("checkpoint-") for path in run.glob("checkpoint-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def write(run: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Make checkpoint-<step>: `fill` writes its files; the folder is complete or absent."""
    aside = run / f"{ASIDE}write-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        fill(aside)
    except UserError as error:
        raise UserError(f"{error}; {UNTOUCHED}") from None
    except OSError as error:
        problem = f"{error.filename or aside}: cannot be written ({error.strerror or error})"
        raise UserError(f"{problem}; {UNTOUCHED}") from None
    files = {path.relative_to(aside).as_posix(): _describe(path) for path in sorted(aside.rglob("*")) if path.is_file()}
    for name in files:
        _sync(aside / name)
    (aside / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=2) + "\n")
    _sync(aside / MANIFEST)
    for path in [*(path for path in aside.rglob("*") if path.is_dir()), aside]:
        _sync(path)
    final = folder_of(run, step)
    old = run / f"{ASIDE}old-{step}"
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    aside.rename(final)
    _sync(run)
    shutil.rmtree(old, ignore_errors=True)
    return final


def verify(folder: Path) -> None:
    """Refuse a checkpoint that is not complete."""
    if problem := damage(folder):
        raise UserError(problem)


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint: a file that is missing, truncated or altered, by its name; empty if complete."""
    manifest = folder / MANIFEST
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        readable = all(entry.keys() == {"size", "sha256"} for entry in files.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        files = {}
        readable = False
    if not readable:
        return f"{manifest}: missing or unreadable; the checkpoint is incomplete"
    adapted = ADAPTER in files
    missing = [name for name in REQUIRED if name not in files and not (adapted and name == "model.safetensors")]
    if missing:
        return f"{manifest}: does not list {', '.join(missing)}; the checkpoint is incomplete"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path}: missing; the checkpoint is incomplete"
        size = path.stat().st_size
        if size != expected["size"]:
            return f"{path}: {size} bytes instead of {expected['size']}; the checkpoint is incomplete"
        if _describe(path) != expected:
            return f"{path}: altered since it was written (its sha256 differs from the manifest's)"
    return ""


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and what was wrong with the newer ones."""
    refused = []
    for step in reversed(steps(run)):
        folder = folder_of(run, step)
        problem = damage(folder)
        if not problem:
            return folder, refused
        refused.append(problem)
    return None, refused


def best(run: Path) -> tuple[Path, list[str]]:
    """The checkpoint with the best score, else the newest complete one; and what was wrong with others."""
    pointer = run / "best.json"
    damaged = []
    if pointer.is_file():
        try:
            folder = folder_of(run, json.loads(pointer.read_text())["step"])
            problem = damage(folder)
            if not problem:
                return folder, []
        except (ValueError, KeyError, TypeError, RecursionError):
            problem = f"{pointer}: unreadable; it should name the best step"
        damaged.append(problem)
    folder, refused = newest(run)
    damaged += [reason for reason in refused if reason not in damaged]
    if folder is None:
        raise UserError("; ".join([f"{run} has no {'complete checkpoint' if damaged else 'checkpoint yet'}", *damaged]))
    return folder, damaged


def point_to_best(run: Path, step: int, score: float) -> None:
    write_atomically(run / "best.json", json.dumps({"step": step, "score": score}) + "\n")


def prune(run: Path, keep: int, step: int, best_step: int | None) -> None:
    """Keep the newest few up to `step`, and the best. Later ones are damaged: they do not count."""
    for old in [saved for saved in steps(run) if saved <= step][:-keep]:
        if old != best_step:
            remove(folder_of(run, old))


def sweep(run: Path) -> None:
    """Remove what a killed process left half written or half deleted; a complete copy is renamed into place."""
    for kind in ("write", "old"):  # the newer copy first
        for path in run.glob(f"{ASIDE}{kind}-*"):
            final = run / f"checkpoint-{path.name.removeprefix(f'{ASIDE}{kind}-')}"
            if not final.exists() and not damage(path):
                path.rename(final)
    for path in run.glob(f"{ASIDE}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove(folder: Path) -> None:
    """Renamed first, so that a kill half-way leaves no broken checkpoint under its name."""
    if folder.exists():
        aside = folder.with_name(f"{ASIDE}delete-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        shutil.rmtree(aside)


def write_atomically(path: Path, text: str) -> None:
    """The old text or the new one, never half of it."""
    aside = path.with_name(f"{ASIDE}{path.name}")
    aside.write_text(text, encoding="utf-8")
    _sync(aside)
    aside.replace(path)
    _sync(path.parent)


def _describe(path: Path) -> dict[str, int | str]:
    return {"size": path.stat().st_size, "sha256": hash_file(path)}


def _sync(path: Path) -> None:
    """Bytes and names on the disk, not only in the kernel."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no handle on a folder to sync
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
