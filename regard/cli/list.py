"""`regard list`: tasks, model families with their presets, and built-in recipes."""

import inspect
from dataclasses import fields

from regard.config.recipe import load_recipe
from regard.config.recipe_files import SHIPPED, about, find_recipe, shipped_recipes
from regard.errors import UserError, nearest
from regard.models.registry import FAMILIES
from regard.tasks.registry import TASKS, task_of

SECTIONS = ("recipes", "models", "tasks")


def catalogue() -> dict[str, object]:
    """Everything that `--json` prints."""
    return {**models(), "tasks": sorted(TASKS), "recipes": recipes(shipped_recipes())}


def overview() -> dict[str, object]:
    """Names alone: what fits a screen."""
    built_in, others = recipe_names()
    return {
        "tasks": sorted(TASKS),
        "models": [f"{name} ({len(family.presets)} presets)" for name, family in FAMILIES.items()],
        "recipes": built_in,
        **({"ablations": f"{len(others)} more recipes: regard list recipes --all"} if others else {}),
        "details": [f"regard list {section}" for section in SECTIONS],
    }


def details(section: str) -> dict[str, object]:
    """One section in full."""
    if section not in SECTIONS:
        raise UserError(f"no section '{section}'{nearest(section, SECTIONS)}")
    if section == "models":
        return models()
    if section == "tasks":
        return {"tasks": {task: _task(task) for task in sorted(TASKS)}}
    return {"recipes": recipes(shipped_recipes())}


def summary(section: str, every: bool = False) -> dict[str, object]:
    """One section for a terminal: recipes by name with a sentence, those of other packages only with `every`."""
    if section != "recipes":
        return details(section)
    built_in, others = recipe_names()
    shown = recipes([*built_in, *others] if every else built_in)
    sentences: dict[str, object] = {name: f"{facts['about']} ({facts['task']})" for name, facts in shown.items()}
    return sentences if every or not others else sentences | {"…": f"{len(others)} more: regard list recipes --all"}


def recipe_names() -> tuple[list[str], list[str]]:
    """Recipes of the package, and those of other packages."""
    names = shipped_recipes()
    built_in = [name for name in names if (SHIPPED / f"{name}.toml").is_file()]
    return built_in, [name for name in names if name not in built_in]


def models() -> dict[str, object]:
    return {
        "families": {
            name: {
                "presets": list(family.presets),
                "fields": [field.name for field in fields(family.config) if "vocabulary" not in field.name],
            }
            for name, family in FAMILIES.items()
        },
        "presets": {name: family.presets for name, family in FAMILIES.items()},
    }


def recipes(names: list[str]) -> dict[str, dict[str, object]]:
    table = {}
    for name in names:
        recipe, path = load_recipe(name), find_recipe(name)
        table[name] = {"task": recipe.task, "family": recipe.model.get("family"), "about": about(path) if path else ""}
    return table


def _task(name: str) -> dict[str, object]:
    task = task_of(name)
    summary = inspect.getdoc(inspect.getmodule(task)) or ""
    families = [family for family, facts in FAMILIES.items() if task.supports(facts)]
    return {"about": summary.partition("\n")[0], "families": families}
