"""Where recipes are found by name: in the package, then in the packages that declare the entry point `regard.recipes`.

[project.entry-points."regard.recipes"]
road = "road"                               # its folder road/recipes holds NAME.toml
"""

from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "recipes"

GROUP = "regard.recipes"


def recipe_folders() -> Iterator[Path]:
    """The package's own recipes first, so that no other package can replace one."""
    yield SHIPPED
    for entry in sorted(entry_points(group=GROUP)):
        try:
            spec = find_spec(entry.module)
        except ImportError:  # a dotted name whose parent is gone
            continue
        if spec is not None:
            yield from (Path(location) / "recipes" for location in spec.submodule_search_locations or ())


def find_recipe(name: str) -> Path | None:
    """The file of a built-in recipe; none where no folder has it."""
    candidates = (folder / f"{name}.toml" for folder in recipe_folders() if Path(name).name == name)
    return next((path for path in candidates if path.is_file()), None)


def shipped_recipes() -> list[str]:
    """The names that `regard train NAME` knows without a file: those of the package, then those of others."""
    names = [name for folder in recipe_folders() for name in sorted(path.stem for path in folder.glob("*.toml"))]
    return list(dict.fromkeys(names))


def is_shipped(path: Path) -> bool:
    return path.parent in recipe_folders()


def about(path: Path) -> str:
    """What a recipe is for, in the words of its first lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("# ") and not line.startswith(("#   ", "# Result")), lines)
    return " ".join(line.removeprefix("# ") for line in head)
