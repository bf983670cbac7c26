"""What a model is for, by name."""

from pathlib import Path
from typing import Any

from regard.config.recipe import Recipe
from regard.data.cache import cache_folder
from regard.errors import UserError, nearest
from regard.interop.folder import Loaded
from regard.models import registry as models
from regard.tasks.answer.task import Answer
from regard.tasks.classify.task import Classify
from regard.tasks.fill.task import Fill
from regard.tasks.generate.task import Generate
from regard.tasks.tag.task import Tag
from regard.tasks.translate.task import Translate
from regard.text.vocabulary import Vocabulary

Trained = Answer | Classify | Fill | Generate | Tag | Translate

TASKS: dict[str, type[Trained]] = {each.name: each for each in (Answer, Classify, Fill, Generate, Tag, Translate)}


def require(task: str, family: str | None = None) -> None:
    """Refuse a task of an unknown name, or one that a family cannot do, before any work is done for it."""
    if task not in TASKS:
        raise UserError(f"task = '{task}' is unknown{nearest(task, TASKS)}")
    if family in models.FAMILIES and not TASKS[task].supports(models.FAMILIES[family]):
        able = [name for name, each in models.FAMILIES.items() if TASKS[task].supports(each)]
        raise UserError(f"model.family = '{family}' cannot do task = '{task}'; possible families: {', '.join(able)}")


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """Tokenizers trained on the recipe's training part."""
    return TASKS[recipe.task].train_tokenizer(recipe)


def fit(loaded: Loaded, recipe: Recipe) -> Loaded:
    """A network with what the recipe's task needs on it."""
    return TASKS[recipe.task].attach_head(loaded, recipe)


def build(recipe: Recipe, vocabulary: Vocabulary, network: Any, cache: Path | None = None) -> Trained:
    """The recipe's task with its data prepared, for this network: for what it reads, and the labels that it knows."""
    require(recipe.task)
    return TASKS[recipe.task](recipe, vocabulary, network, cache or cache_folder())
