"""All that an exact resume needs: how far the run is, raw weights, AdamW's moments and the averaged weights.

Of what is trained, that is: frozen weights are read again from where they came.

There is no random state in it: the randomness of batch k is seeded by (seed, k), a function of the number alone.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.training.optim import EMA, AdamW


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    batch: int = 0  # the number of the next batch, over all processes
    max_steps: int = 0  # 0 while a budget of minutes has not been turned into steps
    seconds: float = 0.0  # of the budget used, evaluation included
    evaluating: float = 0.0  # seconds of it
    evaluated: int = 0  # the step last evaluated
    best_step: int | None = None
    best_score: float | None = None
    waited: int = 0  # evaluations since the best
    skipped: int = 0  # updates skipped in a row


def save(folder: Path, progress: Progress, network: nn.Module, optimizer: AdamW, average: EMA) -> None:
    """Write training.safetensors and training.json."""
    tensors = {f"weights/{name}": tensor for name, tensor in _weights(network, optimizer).items()}
    tensors |= {f"average/{name}": tensor for name, tensor in average.weights.items()}
    for name, parameter in network.named_parameters():
        tensors |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "training.safetensors")
    (folder / "training.json").write_text(json.dumps(asdict(progress), indent=2) + "\n")


@torch.no_grad()
def load(folder: Path, network: nn.Module, optimizer: AdamW, average: EMA) -> Progress:
    """Put everything back as it was."""
    tensors = load_file(folder / "training.safetensors")
    weights = _weights(network, optimizer)
    _refuse_unlike(tensors, weights, average, folder)
    parameters = dict(network.named_parameters())
    for name, tensor in weights.items():
        tensor.copy_(tensors[f"weights/{name}"])
    for name, tensor in average.weights.items():
        tensor.copy_(tensors[f"average/{name}"])
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            parameter_name, key = name.removeprefix("optimizer/").rsplit("/", 1)
            parameter = parameters[parameter_name]
            optimizer.state.setdefault(parameter, {})[key] = tensor.to(parameter.device)
    return Progress(**json.loads((folder / "training.json").read_text()))


def _refuse_unlike(tensors: dict[str, Tensor], weights: dict[str, Tensor], average: EMA, folder: Path) -> None:
    """The state must be of this very network, averaged if the recipe averages: else recipe.toml was changed."""
    averaged = any(name.startswith("average/") for name in tensors)
    if averaged != bool(average.weights):
        raise UserError(
            f"train.average_decay = {average.decay} in recipe.toml, but {folder} was written "
            f"{'with' if averaged else 'without'} averaged weights: put it back as it was"
        )
    wanted = {f"weights/{name}": tuple(tensor.shape) for name, tensor in weights.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("weights/")}
    unlike = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if unlike:
        name = unlike[0]
        raise UserError(
            f"[model] of recipe.toml is not the model of {folder}: {name.removeprefix('weights/')} is "
            f"{found.get(name, 'not')} there and {wanted.get(name, 'not')} here; put it back as it was"
        )


def _weights(network: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Each tensor once, also where layers share it; what is never trained, or can be computed anew, is left out."""
    trained = set(optimizer.parameters)
    lasting = network.state_dict().keys()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in lasting}
    return {name: each for name, each in network.named_parameters() if each in trained} | buffers
