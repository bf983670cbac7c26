"""The tasks by name, imported when they are used: importing one task does not import another, nor torch.

A new task is a package with `options.py` (OPTIONS) and `task.py`, and a line here. Other packages may register theirs.
"""

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.config.options import TaskOptions
from regard.errors import UserError, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from regard.config.recipe import Recipe
    from regard.data.processor import Processor
    from regard.tasks.base import Task

TASKS = {  # name → package : class
    "answer": "regard.tasks.answer:Answer",
    "caption": "regard.tasks.caption:CaptionTask",
    "classify": "regard.tasks.classify:Classify",
    "embed": "regard.tasks.embed:Embed",
    "fill": "regard.tasks.fill:Fill",
    "generate": "regard.tasks.generate:Generate",
    "tag": "regard.tasks.tag:Tag",
    "transcribe": "regard.tasks.transcribe:Transcribe",
    "translate": "regard.tasks.translate:Translate",
}

ALIASES = {  # names in other tools
    "question-answering": "answer",
    "image-to-text": "caption",
    "text-classification": "classify",
    "feature-extraction": "embed",
    "fill-mask": "fill",
    "text-generation": "generate",
    "token-classification": "tag",
    "automatic-speech-recognition": "transcribe",
    "translation": "translate",
}


def register(name: str, package: str) -> None:
    """Add a task: `register("reverse", "mypackage.reverse:Reverse")`."""
    TASKS[name] = package


def canonical(name: str) -> str:
    """The task's own name; an unknown one is an error."""
    name = ALIASES.get(name, name)
    if name not in TASKS:
        raise UserError(f"task = '{name}' is unknown{nearest(name, TASKS)}")
    return name


def options_of(name: str) -> TaskOptions:
    """The recipe tables of a task; loads no torch."""
    package = TASKS[canonical(name)].partition(":")[0]
    return import_module(f"{package}.options").OPTIONS


def task_of(name: str) -> "type[Task]":
    """The class of a task."""
    package, _, kind = TASKS[canonical(name)].partition(":")
    return getattr(import_module(f"{package}.task"), kind)


def owners(section: str, key: str) -> list[str]:
    """The tasks whose table has this key."""
    return [name for name in TASKS if key in {option.name for option in fields(getattr(options_of(name), section))}]


def require_support(task: str, family: str) -> None:
    """Reject a task that models of a family cannot do, before any work is done for it."""
    from regard.models.registry import FAMILIES

    kind = task_of(task)
    if not kind.trainable:
        possible = ", ".join(name for name in TASKS if task_of(name).trainable)
        raise UserError(f"task = '{task}' cannot be trained; expected one of: {possible}")
    if family in FAMILIES and not kind.supports(FAMILIES[family]):
        able = [name for name, candidate in FAMILIES.items() if kind.supports(candidate)]
        raise UserError(
            f"model.family = '{family}' does not support task = '{task}'; expected one of: {', '.join(able)}"
        )


def build(recipe: "Recipe", processor: "Processor", network: Any, cache: "Path | None" = None) -> "Task":
    """The recipe's task with its data prepared for this network."""
    from regard.data.cache import cache_folder

    return task_of(recipe.task)(recipe, processor, network, cache or cache_folder())
