"""`regard inspect`: a model's sizes, config, attention sites and file hashes."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard.attention.trace import record
from regard.errors import UserError
from regard.explorer.induction import head_scores
from regard.model import load
from regard.models.registry import family_of
from regard.runtime.machine import processor


def describe(path: str, heads: bool = False, model_type: str | None = None) -> dict[str, Any]:
    """A model's sizes, config, attention sites and the hashes of its files; of a language model also what heads do."""
    model = load(path, device="cpu", model_type=model_type)
    folder = model.folder or Path(path)
    parameters = _counts(model.network)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.network.parameters())
    if heads and not model.is_causal_lm:
        raise UserError("--heads is for causal language models")
    return {
        "folder": str(folder),
        "family": family_of(model.network),
        "task": model.task,
        **model.predictor().describe(),
        "parameters": _count(model.network),
        "bytes": size,
        "config": asdict(model.network.config),
        "parameters_by_part": parameters,
        "sites": sites(model.network),
        **({"heads": head_scores(model)} if heads else {}),
        "machine": processor(),
        "files": {file.name: _file(file) for file in sorted(folder.iterdir()) if file.is_file()},
    }


def sites(network: Any) -> list[str]:
    """Every attention site of the network, listed by one pass over its smallest input."""
    with record() as recorder:
        network(*network.dummy_inputs)
    return list(recorder.records)


def _counts(network: nn.Module) -> dict[str, int]:
    """Parameters by part; what two parts share counts in the first."""
    counts, seen = dict[str, int](), set[int]()
    for name, part in network.named_children():
        own = {id(each): each.numel() for each in part.parameters() if id(each) not in seen}
        counts[name] = sum(own.values())
        seen.update(own)
    return counts


def _count(part: nn.Module) -> int:
    """Parameters, a shared one counted once."""
    return sum(parameter.numel() for parameter in part.parameters())


def _file(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
