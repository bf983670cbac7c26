"""The state of an exact resume: progress, raw weights, AdamW's moments and the averaged weights of what is trained.

Frozen weights are read again from where they came. There is no random state: what is drawn for batch k is seeded by
(seed, k).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.native import current_name
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
    save_file(contiguous, folder / "training.safetensors")
    (folder / "training.json").write_text(json.dumps(asdict(progress), indent=2) + "\n")


@torch.no_grad()
def load(folder: Path, network: nn.Module, optimizer: AdamW, ema: EMA) -> Progress:
    """Restore weights, moments and averages."""
    family = "seq2seq" if isinstance(network, Seq2Seq) else ""
    tensors = {}
    for stored_name, tensor in load_file(folder / "training.safetensors").items():
        kind, _, name = stored_name.partition("/")
        tensors[f"{kind}/{current_name(name, family)}"] = tensor
    weights = _weights(network, optimizer)
    _refuse_mismatch(tensors, weights, ema, folder)
    parameters = dict(network.named_parameters())
    for name, tensor in weights.items():
        tensor.copy_(tensors[f"weights/{name}"])
    for name, tensor in ema.weights.items():
        tensor.copy_(tensors[f"average/{name}"])
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            parameter_name, key = name.removeprefix("optimizer/").rsplit("/", 1)
            parameter = parameters[parameter_name]
            optimizer.state.setdefault(parameter, {})[key] = tensor.to(parameter.device)
    return Progress(**json.loads((folder / "training.json").read_text()))


def _refuse_mismatch(tensors: dict[str, Tensor], weights: dict[str, Tensor], ema: EMA, folder: Path) -> None:
    """The state must belong to this network, averaged if the recipe averages: else recipe.toml was changed."""
    averaged = any(name.startswith("average/") for name in tensors)
    if averaged != bool(ema.weights):
        raise UserError(
            f"train.ema_decay = {ema.decay} in recipe.toml, but {folder} was written "
            f"{'with' if averaged else 'without'} averaged weights: restore its former value"
        )
    expected = {f"weights/{name}": tuple(tensor.shape) for name, tensor in weights.items()}
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("weights/")}
    different = sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name))
    if different:
        name = different[0]
        raise UserError(
            f"[model] of recipe.toml is not the model of {folder}: {name.removeprefix('weights/')} is "
            f"{stored.get(name, 'missing')} there and {expected.get(name, 'missing')} here; restore its former value"
        )


def _weights(network: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Each trained parameter once, also where layers share it, and the persistent buffers."""
    trained = set(optimizer.parameters)
    persistent = network.state_dict().keys()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in persistent}
    return {name: parameter for name, parameter in network.named_parameters() if parameter in trained} | buffers
