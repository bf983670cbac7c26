"""Tables of config.json's keys ↔ the fields of our configs.

A key that changes the computation is read or refused by name. What else a file says is kept and written back.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.errors import UserError, nearest


class Key(NamedTuple):
    """What one key of theirs says of our config."""

    ours: str
    default: Any  # holds where the key is not said; None is a size that follows from others, our 0
    values: Mapping[Any, Any] | None = None  # theirs: ours, where the two say a value differently


Keys = Mapping[str, Key]

ACTIVATIONS = {  # their name: ours; the first of several is the one we write
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "silu": "swish",
}


def refuse_others(config: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Refuse keys that stand for other mathematics; `only` has the one value of each that does not."""
    for key, value in only.items():
        given = config.get(key)
        if given is not None and given != value:
            raise UserError(f"{key} = {given} changes the computation, and only {key} = {value} is known")


def fields_of(config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Fields of our config from theirs."""
    return {key.ours: _value(config, theirs, key) for theirs, key in keys.items()}


def _value(config: Mapping[str, Any], theirs: str, key: Key) -> Any:
    if key.values is None:
        return checked(config, theirs, key.default)
    given = config.get(theirs, key.default)
    if type(given) is not type(key.default) or given not in key.values:
        raise UserError(f"{theirs} = '{given}' is unknown{nearest(str(given), map(str, key.values))}")
    return key.values[given]


def checked(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """A value of the type it must have; sizes are positive."""
    value = config.get(key, default)
    if default is None:
        return 0 if value is None else checked(config, key, 1)
    wanted: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
        named = "true or false" if isinstance(default, bool) else f"of type {type(default).__name__}, e.g. {default}"
        raise UserError(f"{key} = {value!r} should be {named}")
    if type(default) is int and value < 1:
        raise UserError(f"{key} = {value} should be at least 1")
    return value


def keys_of(fields: Mapping[str, Any], keys: Keys, foreign: Mapping[str, Any]) -> dict[str, Any]:
    """Their keys from the fields of our config; of words that mean the same, a loaded config's own stands."""
    return {theirs: _word(fields[key.ours], key, foreign.get(theirs)) for theirs, key in keys.items()}


def _word(value: Any, key: Key, given: Any) -> Any:
    if key.values is None:
        return None if key.default is None and value == 0 else value
    words = [word for word, ours in key.values.items() if ours == value]
    return next((word for word in (given, key.default) if word in words), words[0])
