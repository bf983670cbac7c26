"""LoRA adapters in the layout of PEFT: low-rank matrices that are added to the weights of a base model.

adapter_config.json          PEFT's: rank, alpha, target modules
adapter_model.safetensors    base_model.model.<module>.lora_A.weight (rank, inputs), lora_B.weight (outputs, rank),
                             and new modules in full, such as base_model.model.score.weight
base.json                    ours: the folder of the base model, and the sha256 of its weights

Where the file stores several of our projections in one tensor (GPT-2's c_attn), the adapter does too: their lora_A are
stacked, and lora_B is block-diagonal.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.config_keys import Json, naming, require_values
from regard.interop.model_path import packaged_models, weight_folders
from regard.interop.safetensors import (
    SHARDS,
    SINGLE,
    TensorSpec,
    TensorSpecs,
    read_file,
    read_json,
    write_file,
    write_json,
)
from regard.layers.lora import Adapted, adapters

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base.json"
FILES = (CONFIG, WEIGHTS, BASE)

PREFIX = "base_model.model."
LORA_A = ".lora_A.weight"
LORA_B = ".lora_B.weight"

BLOCK = re.compile(r".*\.\d+\.")  # before the name of a module inside its block

REQUIRED: Json = {  # keys of PEFT that change the computation: the one value that is supported
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "lora_bias": False,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}

# Patterns of alpha_pattern are regular expressions from an untrusted file: only those that match in bounded time.
SAFE_PATTERN = re.compile(r"(\w|-|\\?\.|\||\^|\$|\.\*|\\d\+)+", re.ASCII)
WILDCARD = re.compile(r"\.\*|\\d\+")
MAX_WILDCARDS = 2
MAX_PATTERN = 1000
MAX_NAME = 200
MAX_ALPHA = 1e30

INITIALISATIONS = (True, False, "gaussian", "orthogonal")  # those that leave the base model's weights as they are


class Base(NamedTuple):
    """The folder of an adapter's base model, and the sha256 of each of its weight files."""

    folder: Path
    hashes: dict[str, str]

    def to_json(self, folder: Path) -> Json:
        """The content of base.json in an adapter's folder."""
        relative = os.path.relpath(self.folder, folder.resolve())
        return {"folder": str(self.folder), "relative": relative, "sha256": self.hashes}


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / SINGLE).is_file()


def base_at(folder: Path) -> Base:
    """A folder as the base model of a new adapter."""
    if is_adapter(folder):
        raise UserError(f"{folder} is an adapter itself: merge it first (regard convert {folder} FOLDER)")
    return Base(folder.resolve(), _hashes(folder))


def _hashes(folder: Path) -> dict[str, str]:
    paths = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(filter(Path.is_file, folder.glob(SHARDS)))
    hashes = {}
    for path in paths:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def base_of(folder: Path) -> Base:
    """The base model of an adapter, which must have the same weights as in training.

    Searched: its path, the same path relative to the adapter, REGARD_WEIGHTS, and installed packages.
    """
    recorded = read_json(folder / BASE) if (folder / BASE).is_file() else {}
    name = recorded.get("folder", read_json(folder / CONFIG).get("base_model_name_or_path"))
    if not isinstance(name, str) or not name:
        raise UserError(f"{folder / CONFIG}: base_model_name_or_path names no base model")
    searched = [Path(os.path.expanduser(name))]
    if isinstance(recorded.get("relative"), str):
        searched.append(Path(os.path.normpath(folder / recorded["relative"])))
    searched.append(folder / name)
    searched += [parent / part for parent in weight_folders() for part in (name, Path(name).name)]
    searched += [path for part in (name, Path(name).parent.name, Path(name).name) for path in packaged_models(part)]
    searched = list(dict.fromkeys(searched))
    candidates = [candidate for candidate in searched if (candidate / "config.json").is_file()]
    if not candidates:
        raise UserError(
            f"{folder}: an adapter of '{name}', which was not found. Searched: {', '.join(map(str, searched))}. "
            "Set REGARD_WEIGHTS to the folder that contains it"
        )
    for candidate in candidates:
        hashes = _hashes(candidate)
        if hashes == recorded.get("sha256", hashes):
            return Base(candidate.resolve(), hashes)
    raise UserError(
        f"{folder}: an adapter of '{name}', but the weights in {candidates[0]} differ from those it was trained on "
        f"(by their sha256 in {BASE})"
    )


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def add(tensors: dict[str, Tensor], folder: Path, prefix: str, merged: bool = True) -> dict[str, Tensor]:
    """The base model's tensors with an adapter's matrices added, and its new modules; only those where not `merged`.

    `prefix` is the one that names in a file may or may not have.
    """
    config = read_json(folder / CONFIG)
    with naming(folder / CONFIG):
        _check(config)
    adapter = {name.removeprefix(PREFIX): tensor for name, tensor in read_file(folder / WEIGHTS).items()}
    new = {name: tensor for name, tensor in adapter.items() if "lora_" not in name}
    replaced = {other for name in new for other in (name.removeprefix(prefix), prefix + name)}
    result = {name: tensor for name, tensor in tensors.items() if name not in replaced} | new
    for module in dict.fromkeys(name.removesuffix(LORA_A).removesuffix(LORA_B) for name in adapter if "lora_" in name):
        a = adapter.get(module + LORA_A)
        b = adapter.get(module + LORA_B)
        if a is None or b is None:
            raise UserError(f"{folder / WEIGHTS}: {module} should have lora_A.weight and lora_B.weight")
        names = (f"{module}.weight", f"{module}.weight".removeprefix(prefix), f"{prefix}{module}.weight")
        name = next((name for name in names if name in result), None)
        if name is None:
            raise UserError(f"{folder / WEIGHTS}: adapts {module}, which the base model does not have")
        weight = result[name].T if config.get("fan_in_fan_out") else result[name]
        if a.dim() != 2 or b.dim() != 2 or len(a) != b.size(1) or not len(a) or (len(b), a.size(1)) != weight.shape:
            raise UserError(
                f"{folder / WEIGHTS}: LoRA shapes A {tuple(a.shape)}, B {tuple(b.shape)} do not match the base weight "
                f"{tuple(weight.shape)} of {module}; wrong base model?"
            )
        if merged:
            weight = weight + b @ a * (_alpha(config, module) / len(a))
            result[name] = weight.T if config.get("fan_in_fan_out") else weight
    return result


def _check(config: Json) -> None:
    """Reject unsupported adapters; the error names the key."""
    require_values(config, REQUIRED)
    initialisation = config.get("init_lora_weights", True)
    if initialisation not in INITIALISATIONS:
        raise UserError(f"init_lora_weights = {initialisation} changes the base model; it is not supported")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise UserError(f"alpha_pattern = {patterns!r:.80} should be an object {{pattern: alpha}}")
    for pattern in patterns:
        wildcards = len(WILDCARD.findall(pattern))
        if not SAFE_PATTERN.fullmatch(pattern) or wildcards > MAX_WILDCARDS or len(pattern) > MAX_PATTERN:
            raise UserError(
                f"alpha_pattern: '{pattern:.80}' is not supported; expected up to {MAX_PATTERN} letters, digits "
                f"and _ - . | ^ $, with at most {MAX_WILDCARDS} wildcards (.* or \\d+)"
            )
    for key, alpha in {"lora_alpha": config.get("lora_alpha"), **patterns}.items():
        if type(alpha) not in (int, float) or not abs(alpha) < MAX_ALPHA:
            raise UserError(f"{key} = {alpha!r:.40} should be a number below {MAX_ALPHA:g}")


def _alpha(config: Json, module: str) -> float:
    """The factor of a module's matrices, times their rank; as in PEFT, patterns match the end of a module's name."""
    patterns = config.get("alpha_pattern") or {}
    return next(
        (alpha for pattern, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({pattern})", module[-MAX_NAME:])),
        config["lora_alpha"],
    )


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, network: nn.Module, specs: TensorSpecs, base: Base, task: str) -> None:
    """Only what was trained. `specs` are those of the network without adapters; `task` is PEFT's task_type."""
    adapted = adapters(network)
    modules: dict[str, list[tuple[TensorSpec, Adapted]]] = {}
    for name, adapter in adapted.items():
        spec = specs[f"{name}.weight"]
        modules.setdefault(spec.names[0].removesuffix(".weight"), []).append((spec, adapter))
    tensors = {}
    ranks = {}
    for module, members in modules.items():
        a, b = _matrices(members)
        tensors |= {f"{PREFIX}{module}{LORA_A}": a, f"{PREFIX}{module}{LORA_B}": b}
        ranks[BLOCK.sub("", module)] = len(a)
    matrices = [f"{name}.{matrix}" for name in adapted for matrix in ("lora_a", "lora_b")]
    new = {name: weight for name, weight in network.named_parameters() if weight.requires_grad and name not in matrices}
    for name, weight in new.items():
        tensors[f"{PREFIX}{specs[name].names[0]}"] = specs[name].to_file([weight.detach().cpu()])
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_file(folder / WEIGHTS, contiguous, {"format": "pt"})
    first = next(iter(adapted.values()))
    rank = len(first.lora_a)
    fused = {module: size for module, size in ranks.items() if size != rank}
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": str(base.folder),
        "r": rank,
        "lora_alpha": _integer(first.alpha),
        "target_modules": sorted(ranks),
        "rank_pattern": fused,
        "alpha_pattern": {module: _integer(first.alpha * size / rank) for module, size in fused.items()},
        "fan_in_fan_out": any(spec.transposed for members in modules.values() for spec, _ in members),
        "modules_to_save": list(dict.fromkeys(specs[name].names[0].rpartition(".")[0] for name in new)) or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    write_json(folder / CONFIG, config)


def _matrices(members: list[tuple[TensorSpec, Adapted]]) -> tuple[Tensor, Tensor]:
    """lora_A and lora_B of one tensor in the file, for one projection of ours or for several that it holds."""
    downs = [adapter.lora_a.detach().cpu().float() for _, adapter in members]
    ups = [adapter.lora_b.detach().cpu().float() for _, adapter in members]
    spec = members[0][0]
    if spec.parts == 1:
        return downs[0], ups[0]
    rank = len(downs[0])
    blocks = [torch.zeros(len(ups[0]), rank * len(members)) for _ in range(spec.parts)]
    for index, up in enumerate(ups):
        blocks[members[index][0].part][:, index * rank : (index + 1) * rank] = up
    return torch.cat(downs), spec._replace(transposed=False).to_file(blocks)


def _integer(value: float) -> float:
    """As an integer where it is one, since PEFT's alpha is."""
    return int(value) if value == int(value) else value
