"""What a model is for, by name."""

from pathlib import Path

from regard import models
from regard.errors import UserError, nearest
from regard.inputs.text import Vocabulary
from regard.recipe import Recipe
from regard.tasks.generate import Generate
from regard.tasks.parallel import cache_folder
from regard.tasks.translate import Translate

TASKS = {"generate": Generate, "translate": Translate}
CONTINUE = ("generate",)  # the tasks of models that go on with a text


def require(task: str, family: str | None = None) -> None:
    """Refuse a task of an unknown name, or one that a family cannot do, before any work is done for it."""
    if task not in TASKS:
        raise UserError(f"task = '{task}' is unknown{nearest(task, TASKS)}")
    if family in models.FAMILIES and models.FAMILIES[family].continues != (task in CONTINUE):
        able = [name for name, each in models.FAMILIES.items() if each.continues == (task in CONTINUE)]
        raise UserError(f"model.family = '{family}' cannot do task = '{task}'; possible families: {', '.join(able)}")


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """Tokenizers trained on the recipe's training part."""
    return TASKS[recipe.task].learn(recipe)


def build(recipe: Recipe, vocabulary: Vocabulary, limit: int, cache: Path | None = None) -> Generate | Translate:
    """The recipe's task with its data prepared, for a network that reads at most `limit` tokens."""
    require(recipe.task)
    return TASKS[recipe.task](recipe, vocabulary, cache or cache_folder(), limit)
