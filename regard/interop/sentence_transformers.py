"""How a folder makes one vector of a text, in the shape that sentence-transformers writes.

modules.json · 1_Pooling/config.json · 2_Normalize · sentence_bert_config.json (the longest text)
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.interop.safetensors import read_json, write_json

MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}

POOLINGS = tuple(MODES.values())  # the mean of a text's states, its first state, or the largest of each number

MODULES = "modules.json"

SETTINGS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
            "sentence_albert_config.json", "sentence_camembert_config.json")  # fmt: skip


class Pooling(NamedTuple):
    """How the states of a text become one vector."""

    kind: str = "mean"
    normalise: bool = False  # to the length of one, so that a product is a cosine
    longest: int = 0  # tokens; 0: as many as the network reads


def pooling_of(folder: Path) -> Pooling | None:
    """What a folder says of it, if it says anything."""
    if not (folder / MODULES).is_file():
        return None
    kind, normalise = "", False
    for module in _modules(folder / MODULES):
        word = str(module.get("type", "")).rsplit(".", 1)[-1]
        if word == "Pooling":
            kind = _kind(folder / str(module.get("path", "")) / "config.json")
        elif word == "Normalize":
            normalise = True
        elif word != "Transformer":
            raise UserError(f"{folder / MODULES}: '{word}' is unknown; possible: Transformer, Pooling, Normalize")
    longest = next((_longest(folder / name) for name in SETTINGS if (folder / name).is_file()), 0)
    return Pooling(kind, normalise, longest) if kind else None


def said_pooling(folder: Path) -> Pooling | None:
    """The same, or nothing where what it says is not known here."""
    try:
        return pooling_of(folder)
    except UserError:
        return None


def write_pooling(folder: Path, pooling: Pooling, width: int) -> None:
    """The same files, so that others embed as it is done here."""
    names = ["Transformer", "Pooling"] + (["Normalize"] if pooling.normalise else [])
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{name}" if number else "",
         "type": f"sentence_transformers.models.{name}"}
        for number, name in enumerate(names)
    ]  # fmt: skip
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {key: kind == pooling.kind for key, kind in MODES.items()}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **modes})
    if pooling.normalise:
        (folder / "2_Normalize").mkdir(exist_ok=True)
    if pooling.longest:
        write_json(folder / SETTINGS[0], {"max_seq_length": pooling.longest, "do_lower_case": False})
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON that can be read ({error})") from None
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise UserError(f"{path}: should hold a list of modules, each with its type and path")
    return found


def _kind(path: Path) -> str:
    """The one way of pooling that a file names."""
    config = read_json(path)
    named = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(named) != 1 or named[0] not in MODES:
        raise UserError(f"{path}: {', '.join(named) or 'no pooling_mode'}; possible is one of {', '.join(MODES)}")
    return MODES[named[0]]


def _longest(path: Path) -> int:
    found = read_json(path).get("max_seq_length")
    return found if type(found) is int and found > 0 else 0
