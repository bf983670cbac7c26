"""Tables of config.json's keys ↔ the fields of our configs.

A key that changes the computation is read, or an error names it. All other keys are kept and written back.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError

Json = dict[str, Any]  # the object in a JSON file


class Key(NamedTuple):
    """The field of our config that a key of config.json determines."""

    ours: str
    default: Any  # of an absent key; None is a size that follows from others, our 0
    values: Mapping[Any, Any] | None = None  # their value → ours, where the two differ


Keys = Mapping[str, Key]

ACTIVATIONS = {  # their name → ours; the first of several is the one we write
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


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """An error from inside also names the file or folder."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def unsupported(key: str, value: object, supported: Iterable[object]) -> UserError:
    """The error about a value of a published file: what is supported, not what is spelled alike."""
    return UserError(f"{key} = '{value}' is not supported; expected one of: {', '.join(map(str, supported))}")


def require_values(config: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Reject keys that change the computation; `required` has the one supported value of each."""
    for key, supported in required.items():
        value = config.get(key)
        if value is not None and value != supported:
            raise UserError(f"{key} = {value} changes the computation; only {key} = {supported} is supported")


def read_fields(config: Mapping[str, Any], keys: Keys) -> Json:
    """The fields of our config from the keys of theirs."""
    fields = {}
    for theirs, key in keys.items():
        if key.values is None:
            fields[key.ours] = checked(config, theirs, key.default)
            continue
        value = config.get(theirs, key.default)
        if type(value) is not type(key.default) or value not in key.values:
            raise unsupported(theirs, value, key.values)
        fields[key.ours] = key.values[value]
    return fields


def checked(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """A key's value, of the type of its default; sizes are positive."""
    value = config.get(key, default)
    if default is None:
        return 0 if value is None else checked(config, key, 1)
    types: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, types) or isinstance(value, bool) != isinstance(default, bool):
        expected = "true or false" if isinstance(default, bool) else f"of type {type(default).__name__}, e.g. {default}"
        raise UserError(f"{key} = {value!r} should be {expected}")
    if type(default) is int and value < 1:
        raise UserError(f"{key} = {value} should be at least 1")
    return value


def keys_from(fields: Mapping[str, Any], keys: Keys, foreign: Mapping[str, Any]) -> Json:
    """Their keys from the fields of our config; of synonymous values, the loaded config's is kept."""
    config = {}
    for theirs, key in keys.items():
        value = fields[key.ours]
        if key.values is None:
            config[theirs] = None if key.default is None and value == 0 else value
            continue
        synonyms = [name for name, ours in key.values.items() if ours == value]
        config[theirs] = next((name for name in (foreign.get(theirs), key.default) if name in synonyms), synonyms[0])
    return config
