"""A recipe as a flat table of settings: to compare two runs, and two models of the study."""

import json
from dataclasses import asdict
from typing import Any

from regard.config.aliases import canonical_key, canonical_value
from regard.config.recipe import EXCLUSIVE, Recipe

FREE = (  # where and how visibly a run happens, not what it comes to
    "output", "origin", "train.threads", "train.device", "train.keep", "train.save_steps", "train.log_steps",
    "train.tensorboard",
)  # fmt: skip
CHOICES = [f"train.{name}" for group in EXCLUSIVE.values() for name in group]  # of each group one is given


def settings(recipe: Recipe) -> dict[str, Any]:
    """Every key that decides what a run comes to, the family's defaults written out, as JSON would give it back."""
    from regard.models.registry import configure  # takes torch along

    model = asdict(configure(recipe.model, source_vocabulary=1, target_vocabulary=1))
    model = {name: value for name, value in model.items() if "vocabulary" not in name}
    sections = asdict(recipe) | {"model": {"family": recipe.model["family"], **model}}
    flat: dict[str, Any] = {}
    for section, value in sections.items():
        inside = {f"{section}.{name}": each for name, each in value.items()} if isinstance(value, dict) else None
        flat |= {section: value} if inside is None else inside
    kept = {key: value for key, value in flat.items() if key not in FREE and (value or key not in CHOICES)}
    return json.loads(json.dumps(kept))


def changed_since(then: dict[str, Any], recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """What a recipe changed since it was measured. Keys that did not exist then had their default.

    Keys that were renamed since have their present name; keys that the task no longer has are left out.
    """
    family = recipe.model["family"]
    default = settings(Recipe(task=recipe.task, output="", model={"family": family}))
    now = settings(recipe)
    present = {canonical_key(key, family): value for key, value in then.items()}
    present = {key: canonical_value(key, value) for key, value in present.items()}
    known = {*default, *now, *CHOICES}
    return changes(default | {key: value for key, value in present.items() if key in known}, now)


def changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key → both values, wherever they differ; None stands for a key that one of them does not have."""
    keys = [*now, *(key for key in before if key not in now)]
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}
