"""What a model is for, by name."""

from pathlib import Path

from regard.errors import UserError, nearest
from regard.inputs.text import Vocabulary
from regard.recipe import Recipe
from regard.tasks.parallel import cache_folder, learn_vocabulary
from regard.tasks.translate import Translate

TASKS = {"translate": Translate}


def require(task: str) -> None:
    """Refuse a task of an unknown name, before any work is done for it."""
    if task not in TASKS:
        raise UserError(f"task = '{task}' is unknown{nearest(task, TASKS)}")


def build(recipe: Recipe, cache: Path | None = None, vocabulary: Vocabulary | None = None) -> Translate:
    """The recipe's task with its data prepared; a vocabulary that is not given is learnt."""
    require(recipe.task)
    return TASKS[recipe.task](recipe, vocabulary or learn_vocabulary(recipe), cache or cache_folder())
