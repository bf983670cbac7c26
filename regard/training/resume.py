"""The state of an exact resume: progress, raw weights, AdamW's moments and the averaged weights of what is trained.

Frozen weights are read again from where they came. There is no random state: what is drawn for batch k is seeded by
(seed, k).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.native import current_name
from regard.interop.safetensors import write_file
from regard.models.seq2seq import Seq2Seq
from regard.training.optim import EMA, AdamW


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    batch: int = 0  # the index of the next batch, over all processes
    max_steps: int = 0  # 0 while a budget of minutes has not been converted to steps
    seconds: float = 0.0  # of the budget used, evaluation included
    evaluating: float = 0.0  # seconds of it
    evaluated: int = 0  # the step last evaluated
    best_step: int | None = None
    best_score: float | None = None
    waited: int = 0  # evaluations since the best
    skipped: int = 0  # updates skipped in a row


def save(folder: Path, progress: Progress, network: nn.Module, optimizer: AdamW, ema: EMA) -> None:
    """Write training.safetensors and training.json."""
    tensors = {f"weights/{name}": tensor for name, tensor in _weights(network, optimizer).items()}
    tensors |= {f"average/{name}": tensor for name, tensor in ema.weights.items()}
    for name, parameter in network.named_parameters():
        tensors |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_file(folder / "training.safetensors", contiguous)
    (folder / "training.json").write_text(json.dumps(asdict(progress), indent=2) + "\n")


@torch.no_grad()
def load(folder: Path, network: nn.Module, optimizer: AdamW, ema: EMA) -> Progress:
    """Restore weights, moments and averages; they must belong to this network: else recipe.toml was changed."""
    family = "seq2seq" if isinstance(network, Seq2Seq) else ""
    stored: dict[str, dict[str, Tensor]] = {"weights": {}, "average": {}, "optimizer": {}}
    for stored_name, tensor in load_file(folder / "training.safetensors").items():
        kind, _, name = stored_name.partition("/")
        stored[kind][current_name(name, family)] = tensor
    if bool(stored["average"]) != bool(ema.weights):
        raise UserError(
            f"train.ema_decay = {ema.decay} in recipe.toml, but {folder} was written "
            f"{'with' if stored['average'] else 'without'} averaged weights: restore its former value"
        )
    weights = _weights(network, optimizer)
    there = {name: tuple(tensor.shape) for name, tensor in stored["weights"].items()}
    here = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            shapes = f"{there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
            problem = f"[model] of recipe.toml is not the model of {folder}: {name} is {shapes}"
            raise UserError(f"{problem}; restore its former value")
    for name, tensor in weights.items():
        tensor.copy_(stored["weights"][name])
    for name, tensor in ema.weights.items():
        tensor.copy_(stored["average"][name])
    parameters = dict(network.named_parameters())
    for name, tensor in stored["optimizer"].items():
        parameter_name, key = name.rsplit("/", 1)
        parameter = parameters[parameter_name]
        optimizer.state.setdefault(parameter, {})[key] = tensor.to(parameter.device)
    return Progress(**json.loads((folder / "training.json").read_text()))


def _weights(network: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Each trained parameter once, also where layers share it, and the persistent buffers."""
    trained = set(optimizer.parameters)
    persistent = network.state_dict().keys()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in persistent}
    return {name: parameter for name, parameter in network.named_parameters() if parameter in trained} | buffers
