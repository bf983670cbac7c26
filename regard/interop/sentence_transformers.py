"""How an encoder pools its states to one vector, in the files of sentence-transformers.

modules.json · 1_Pooling/config.json · 2_Normalize · sentence_bert_config.json (max_seq_length)

Version 6 writes `"pooling_mode": "cls"` instead of `"pooling_mode_cls_token": true`, and the length as
`model_max_length` in tokenizer_config.json. Both forms are read; the older one is written, which all versions read.
"""

from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.interop.safetensors import read_json, write_json

MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}

POOLINGS = tuple(MODES.values())  # of the hidden states, the first one ([CLS]), or the maximum of each feature

MODULES = "modules.json"

MAX_LENGTH = 1 << 24  # tokenizers without a limit have a model_max_length of 1e30

SETTINGS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
            "sentence_albert_config.json", "sentence_camembert_config.json")  # fmt: skip


class Pooling(NamedTuple):
    """How the hidden states of a text become one vector."""

    kind: str = "mean"
    normalise: bool = False  # to unit length, so that a dot product is a cosine
    max_length: int = 0  # tokens; 0: the network's limit


class UnsupportedPooling(UserError):
    """A folder whose files are valid, but whose modules or pooling have no equivalent here."""


def pooling_of(folder: Path) -> Pooling | None:
    """The pooling that a folder specifies, if any."""
    if not (folder / MODULES).is_file():
        return None
    kind = ""
    normalise = False
    for module in read_json(folder / MODULES, list):
        if not isinstance(module, dict):
            raise UserError(f"{folder / MODULES}: should hold a list of modules, each with its type and path")
        module_type = str(module.get("type", "")).rsplit(".", 1)[-1]
        if module_type == "Pooling":
            kind = _kind(folder / str(module.get("path", "")) / "config.json")
        elif module_type == "Normalize":
            normalise = True
        elif module_type != "Transformer":
            raise UnsupportedPooling(
                f"{folder / MODULES}: '{module_type}' is unknown; expected one of: Transformer, Pooling, Normalize"
            )
    if not kind:
        return None
    keys = {**dict.fromkeys(SETTINGS, "max_seq_length"), "tokenizer_config.json": "model_max_length"}
    limits = (read_json(folder / name).get(key) for name, key in keys.items() if (folder / name).is_file())
    max_length = next((limit for limit in limits if type(limit) is int and 0 < limit < MAX_LENGTH), 0)
    return Pooling(kind, normalise, max_length)


def supported_pooling(folder: Path) -> Pooling | None:
    """The same, or None where the folder's pooling is not supported."""
    try:
        return pooling_of(folder)
    except UnsupportedPooling:
        return None


def write_pooling(folder: Path, pooling: Pooling, width: int) -> None:
    """Write the files, so that sentence-transformers computes the same vectors."""
    names = ["Transformer", "Pooling"] + (["Normalize"] if pooling.normalise else [])
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{name}" if index else "",
         "type": f"sentence_transformers.models.{name}"}
        for index, name in enumerate(names)
    ]  # fmt: skip
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {key: kind == pooling.kind for key, kind in MODES.items()}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **modes})
    if pooling.normalise:
        (folder / "2_Normalize").mkdir(exist_ok=True)
    if pooling.max_length:
        write_json(folder / SETTINGS[0], {"max_seq_length": pooling.max_length, "do_lower_case": False})
    write_json(folder / MODULES, modules)


def _kind(path: Path) -> str:
    """The pooling of a file, which must have exactly one."""
    config = read_json(path)
    if "pooling_mode" in config:  # version 6
        mode = config["pooling_mode"]
        names = mode if isinstance(mode, list) else [mode]
        modes = {name: name for name in POOLINGS}
    else:
        names = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        modes = MODES
    if len(names) != 1 or not isinstance(names[0], str) or names[0] not in modes:
        requested = ", ".join(map(str, names)) or "no pooling_mode"
        raise UnsupportedPooling(f"{path}: {requested} is not supported; expected one of: {', '.join(modes)}")
    return modes[names[0]]
