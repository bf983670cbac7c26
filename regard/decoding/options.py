"""Decode options of a caller: names and types are checked here, ranges in DecodeOptions."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from regard.config.recipe import DecodeOptions
from regard.errors import UserError, nearest

TYPES = {  # allowed for each option
    field.name: (float, int) if isinstance(field.default, float) else (type(field.default),)
    for field in fields(DecodeOptions)
} | {"logit_bias": (dict,), "stop": (tuple, list, str), "suppress_tokens": (tuple, list)}
ITEM_TYPES = {"stop": str, "suppress_tokens": int}
TASK_OPTIONS = {"alignments": "translate", "log_probabilities": "generate", "draft": "generate", "lookup": "generate"}
WAYS = ("batch_size", "truncate", "progress")  # they do not change an answer


def accepted(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the types of DecodeOptions; unknown names and other types are refused."""
    for name, value in options.items():
        _check(name, value)
    checked = dict(options)
    if "stop" in checked:
        checked["stop"] = (checked["stop"],) if isinstance(checked["stop"], str) else tuple(checked["stop"])
    if "logit_bias" in checked:
        checked["logit_bias"] = {str(token): bias for token, bias in checked["logit_bias"].items()}
    return checked


def _check(name: str, value: Any) -> None:
    if name in TASK_OPTIONS:
        raise UserError(f"'{name}' is not an option here; `run` has it, for models whose task is {TASK_OPTIONS[name]}")
    if name in WAYS:
        raise UserError(f"'{name}' is not an option here; `run` has it")
    if name not in TYPES:
        raise UserError(f"unknown option '{name}'{nearest(name, [*TYPES, *TASK_OPTIONS])}")
    if type(value) not in TYPES[name]:
        raise UserError(f"{name} = {value!r} does not fit; expected {TYPES[name][0].__name__}")
    if name in ITEM_TYPES and (wrong := [item for item in value if type(item) is not ITEM_TYPES[name]]):
        raise UserError(f"{name} contains {wrong[0]!r}, which does not fit; expected {ITEM_TYPES[name].__name__}")
