"""What a model is for, by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard import models
from regard.errors import UserError, nearest
from regard.inputs.text import Vocabulary
from regard.recipe import Recipe
from regard.tasks.classify import Classify
from regard.tasks.generate import Generate
from regard.tasks.parallel import cache_folder
from regard.tasks.translate import Translate

TASKS = {"classify": Classify, "generate": Generate, "translate": Translate}
ABLE: dict[str, Callable[[models.Family], bool]] = {  # which families can do a task
    "classify": lambda family: not family.translates,
    "generate": lambda family: family.continues,
    "translate": lambda family: family.translates,
}


def require(task: str, family: str | None = None) -> None:
    """Refuse a task of an unknown name, or one that a family cannot do, before any work is done for it."""
    if task not in TASKS:
        raise UserError(f"task = '{task}' is unknown{nearest(task, TASKS)}")
    if family in models.FAMILIES and not ABLE[task](models.FAMILIES[family]):
        able = [name for name, each in models.FAMILIES.items() if ABLE[task](each)]
        raise UserError(f"model.family = '{family}' cannot do task = '{task}'; possible families: {', '.join(able)}")


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """Tokenizers trained on the recipe's training part."""
    return TASKS[recipe.task].learn(recipe)


def build(
    recipe: Recipe, vocabulary: Vocabulary, network: Any, cache: Path | None = None
) -> Classify | Generate | Translate:
    """The recipe's task with its data prepared, for this network: for what it reads, and the labels that it knows."""
    require(recipe.task)
    limit, place = int(network.limit), cache or cache_folder()
    if recipe.task == "classify":
        return Classify(recipe, vocabulary, place, limit, network.labels)
    return TASKS[recipe.task](recipe, vocabulary, place, limit)
