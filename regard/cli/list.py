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
    return {**details("models"), "tasks": sorted(TASKS), **details("recipes")}


def overview() -> dict[str, object]:
    """Names alone: what fits a screen. Of the recipes, those for data of the user."""
    for_own_data = [name for name in built_in_recipes() if "your" in about_recipe(name)]
    others = len(shipped_recipes()) - len(for_own_data)
    return {
        "tasks": sorted(TASKS),
        "models": sorted(FAMILIES),
        "recipes": for_own_data,
        "more": f"{others} recipes of public and synthetic datasets: regard list recipes",
        "details": [f"regard list {section}" for section in SECTIONS],
    }


def details(section: str) -> dict[str, object]:
    """One section in full."""
    if section == "models":
        families = {}
        for name, family in FAMILIES.items():
            keys = [field.name for field in fields(family.config) if "vocabulary" not in field.name]
            families[name] = {"presets": list(family.presets), "fields": keys}
        return {"families": families, "presets": {name: family.presets for name, family in FAMILIES.items()}}
    if section == "tasks":
        return {"tasks": {name: describe_task(name) for name in sorted(TASKS)}}
    if section == "recipes":
        return {"recipes": {name: describe_recipe(name) for name in shipped_recipes()}}
    raise UserError(f"no section '{section}'{nearest(section, SECTIONS)}")


def summary(section: str, every: bool = False) -> dict[str, object]:
    """One section for a terminal: recipes by name with a sentence, those of other packages only with `every`."""
    if section != "recipes":
        return details(section)
    names = shipped_recipes() if every else built_in_recipes()
    facts = {name: describe_recipe(name) for name in names}
    sentences: dict[str, object] = {name: f"{fact['about']} ({fact['task']})" for name, fact in facts.items()}
    others = len(shipped_recipes()) - len(names)
    return sentences | ({"…": f"{others} more: regard list recipes --all"} if others else {})


def built_in_recipes() -> list[str]:
    """Recipes of the package; those of other packages are ablation studies."""
    return [name for name in shipped_recipes() if (SHIPPED / f"{name}.toml").is_file()]


def describe_task(name: str) -> dict[str, object]:
    task = task_of(name)
    module = inspect.getdoc(inspect.getmodule(task)) or ""
    families = [family for family, facts in FAMILIES.items() if task.supports(facts)]
    return {"about": module.partition("\n")[0], "families": families}


def describe_recipe(name: str) -> dict[str, object]:
    recipe = load_recipe(name)
    return {"task": recipe.task, "family": recipe.model.get("family"), "about": about_recipe(name)}


def about_recipe(name: str) -> str:
    """The first sentence of its header."""
    path = find_recipe(name)
    return about(path) if path else ""
