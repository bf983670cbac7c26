"""Options of decoding as a caller gives them: names and types are checked here, ranges where they are kept."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from regard.config.recipe import DecodeOptions
from regard.errors import UserError, nearest

TYPES = {  # that each option may have
    field.name: (float, int) if isinstance(field.default, float) else (type(field.default),)
    for field in fields(DecodeOptions)
} | {"logit_bias": (dict,), "stop": (tuple, list, str), "suppress_tokens": (tuple, list)}

HELD = {"stop": str, "suppress_tokens": int}

OWN = {"alignments": "translate", "log_probabilities": "generate", "draft": "generate", "lookup": "generate"}  # tasks'

WAYS = ("batch_size", "truncate", "progress")  # of computing an answer, which do not change it


def accepted(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the types that DecodeOptions keeps; one of another name or type is refused."""
    for name, value in options.items():
        _check(name, value)
    found = dict(options)
    if "stop" in found:
        found["stop"] = (found["stop"],) if isinstance(found["stop"], str) else tuple(found["stop"])
    if "logit_bias" in found:
        found["logit_bias"] = {str(token): bias for token, bias in found["logit_bias"].items()}
    return found


def _check(name: str, value: Any) -> None:
    if name in OWN:
        raise UserError(f"'{name}' is no option here; `run` has it, for models that were made to {OWN[name]}")
    if name in WAYS:
        raise UserError(f"'{name}' is no option here; `run` has it")
    if name not in TYPES:
        raise UserError(f"unknown option '{name}'{nearest(name, [*TYPES, *OWN])}")
    if type(value) not in TYPES[name]:
        raise UserError(f"{name} = {value!r} does not fit; expected {TYPES[name][0].__name__}")
    if name in HELD and (wrong := [each for each in value if type(each) is not HELD[name]]):
        raise UserError(f"{name} holds {wrong[0]!r}, which does not fit; expected {HELD[name].__name__}")
