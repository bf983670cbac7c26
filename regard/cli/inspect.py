"""`regard inspect`: a model's sizes, config, attention layers and file hashes."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard.attention.recording import record
from regard.errors import UserError
from regard.explorer.induction import head_scores
from regard.layers.protocols import Network
from regard.model import load
from regard.models.registry import family_of
from regard.runtime.machine import processor


def describe(path: str, heads: bool = False, model_type: str | None = None) -> dict[str, Any]:
    """A model's sizes, config, attention layers and file hashes; with `heads` also induction scores."""
    model = load(path, device="cpu", model_type=model_type)
    folder = model.folder or Path(path)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.network.parameters())
    if heads and not model.is_causal_lm:
        raise UserError(f"--heads is for causal language models; this model's task is '{model.task}'")
    return {
        "folder": str(folder),
        "family": family_of(model.network),
        "task": model.task,
        **model.predictor().describe(),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "bytes": size,
        "config": asdict(model.network.config),
        "parameters_by_part": _counts(model.network),
        "sites": sites(model.network),
        **({"heads": head_scores(model)} if heads else {}),
        "machine": processor(),
        "files": {file.name: _file(file) for file in sorted(folder.iterdir()) if file.is_file()},
    }


def sites(network: Network) -> list[str]:
    """Every attention layer (site) of the network, listed by one pass over its smallest input."""
    with record() as recorder:
        network(*network.dummy_inputs)
    return list(recorder.records)


def _counts(network: nn.Module) -> dict[str, int]:
    """Parameters of each submodule; shared ones count in the first."""
    counts: dict[str, int] = {}
    seen: set[int] = set()
    for name, module in network.named_children():
        sizes = {id(parameter): parameter.numel() for parameter in module.parameters() if id(parameter) not in seen}
        counts[name] = sum(sizes.values())
        seen.update(sizes)
    return counts


def _file(path: Path) -> dict[str, int | str]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
