"""A model said as another, its base, and what was added to that: LoRA's products, in PEFT's layout.

adapter_config.json          PEFT's: rank, alpha, which modules
adapter_model.safetensors    base_model.model.<module>.lora_A.weight (rank, inputs), lora_B.weight (outputs, rank),
                             and whole what is new, such as base_model.model.score.weight
base.json                    ours: where the base's folder was, and the sha256 of its weights

Where the file keeps several of our projections in one tensor (GPT-2's c_attn), so does the adapter: their products
stand side by side, and zeros keep them apart.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.config_keys import refuse_others
from regard.interop.model_path import carried
from regard.interop.safetensors import SHARDS, WHOLE, Names, TensorSpec, read_file, read_json, write_json
from regard.layers.lora import Adapted, adapters

CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"

FILES = (CONFIG, WEIGHTS, BASE)

PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"

BLOCK = re.compile(r".*\.\d+\.")  # before the name of a module inside its block

ONLY: dict[str, Any] = {  # PEFT's keys for other mathematics: the one value that is known
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "lora_bias": False,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}

INITIAL = (True, False, "gaussian", "orthogonal")  # ways to begin that leave the base's weights as they were


class Base(NamedTuple):
    """The folder that an adapter stands on, and the sha256 of each of its files of weights."""

    folder: Path
    hashes: dict[str, str]

    def told(self, folder: Path) -> dict[str, Any]:
        """What base.json says in an adapter's folder."""
        relative = os.path.relpath(self.folder, folder.resolve())
        return {"folder": str(self.folder), "relative": relative, "sha256": self.hashes}


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / WHOLE).is_file()


def base_at(folder: Path) -> Base:
    """A folder as the base of a new adapter."""
    if is_adapter(folder):
        raise UserError(f"{folder} is an adapter itself: merge it first (regard convert {folder} FOLDER)")
    return Base(folder.resolve(), _hashes(folder))


def _hashes(folder: Path) -> dict[str, str]:
    files = [folder / WHOLE] if (folder / WHOLE).is_file() else sorted(folder.glob(SHARDS))
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def base_of(folder: Path) -> Base:
    """The base of an adapter: as it was named, from the adapter's place, in REGARD_WEIGHTS, or in an installed package.

    It must be the same.
    """
    known = read_json(folder / BASE) if (folder / BASE).is_file() else {}
    name = known.get("folder", read_json(folder / CONFIG).get("base_model_name_or_path"))
    if not isinstance(name, str) or not name:
        raise UserError(f"{folder / CONFIG}: base_model_name_or_path names no base")
    places = list(dict.fromkeys(_places(folder, name, known.get("relative"))))
    there = [place for place in places if (place / "config.json").is_file()]
    if not there:
        looked = ", ".join(map(str, places))
        raise UserError(
            f"{folder}: an adapter of '{name}', which is not there: looked for {looked}; REGARD_WEIGHTS may name more "
            "folders"
        )
    for place in there:
        found = _hashes(place)
        if found == known.get("sha256", found):
            return Base(place.resolve(), found)
    raise UserError(
        f"{folder}: an adapter of '{name}', but the weights in {there[0]} are others than those it was trained on "
        f"(their sha256 differs from that in {BASE})"
    )


def _places(folder: Path, name: str, relative: Any) -> Iterator[Path]:
    yield Path(name).expanduser()
    if isinstance(relative, str):
        yield Path(os.path.normpath(folder / relative))
    yield folder / name
    for weights in os.environ.get("REGARD_WEIGHTS", "").split(os.pathsep):
        if weights:
            yield Path(weights) / name
            yield Path(weights) / Path(name).name
    for package in (name, Path(name).parent.name, Path(name).name):
        yield from carried(package)


# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def add(tensors: dict[str, Tensor], folder: Path, prefix: str, merged: bool = True) -> dict[str, Tensor]:
    """The base's tensors with an adapter's products added, and what is new; with the new alone where not `merged`.

    `prefix` is what the names in a file may or may not begin with.
    """
    config = read_json(folder / CONFIG)
    _check(config, folder)
    given = {name.removeprefix(PREFIX): tensor for name, tensor in read_file(folder / WEIGHTS).items()}
    new = {name: tensor for name, tensor in given.items() if "lora_" not in name}
    replaced = {other for name in new for other in (name.removeprefix(prefix), prefix + name)}
    result = {name: tensor for name, tensor in tensors.items() if name not in replaced} | new
    for module in dict.fromkeys(name.removesuffix(DOWN).removesuffix(UP) for name in given if "lora_" in name):
        down, up = given.get(module + DOWN), given.get(module + UP)
        if down is None or up is None:
            raise UserError(f"{folder / WEIGHTS}: {module} should have lora_A.weight and lora_B.weight")
        name = _named(f"{module}.weight", result, prefix, folder)
        weight = result[name].T if config.get("fan_in_fan_out") else result[name]
        if down.dim() != 2 or up.dim() != 2 or len(down) != up.size(1) or (len(up), down.size(1)) != weight.shape:
            shapes = f"{tuple(up.shape)} × {tuple(down.shape)}"
            raise UserError(f"{folder / WEIGHTS}: {module}: {shapes} is no product for a weight {tuple(weight.shape)}")
        if merged:
            weight = weight + up @ down * (_alpha(config, module, folder) / len(down))
            result[name] = weight.T if config.get("fan_in_fan_out") else weight
    return result


def _check(config: dict[str, Any], folder: Path) -> None:
    """Refuse other kinds of adapters by name."""
    try:
        refuse_others(config, ONLY)
        begun = config.get("init_lora_weights", True)
        if begun not in INITIAL:
            raise UserError(f"init_lora_weights = {begun} changes the base, and is not known")
        if type(config.get("lora_alpha")) not in (int, float):
            raise UserError(f"lora_alpha = {config.get('lora_alpha')} should be a number")
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from None


def _alpha(config: dict[str, Any], module: str, folder: Path) -> float:
    """What a module's product is multiplied by, times its rank; patterns are PEFT's, for the end of its name."""
    try:
        for pattern, alpha in (config.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return float(alpha)
    except (re.error, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{folder / CONFIG}: alpha_pattern cannot be read ({error})") from None
    return config["lora_alpha"]


def _named(name: str, tensors: Mapping[str, Tensor], prefix: str, folder: Path) -> str:
    names = (name, name.removeprefix(prefix), prefix + name)
    found = next((each for each in names if each in tensors), None)
    if found is None:
        raise UserError(f"{folder / WEIGHTS}: adapts {name}, which the base does not have")
    return found


# ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, network: nn.Module, names: Names, base: Base, task: str) -> None:
    """Only what was trained. `names` are those of the network without adapters, `task` is PEFT's word."""
    found = adapters(network)
    groups: dict[str, list[tuple[TensorSpec, Adapted]]] = {}
    for place, adapted in found.items():
        slot = names[f"{place}.weight"]
        groups.setdefault(slot.names[0].removesuffix(".weight"), []).append((slot, adapted))
    tensors, ranks = {}, {}
    for module, parts in groups.items():
        down, up = _together(parts)
        tensors |= {f"{PREFIX}{module}{DOWN}": down, f"{PREFIX}{module}{UP}": up}
        ranks[BLOCK.sub("", module)] = len(down)
    inside = [f"{place}.{part}" for place in found for part in ("down", "up")]
    new = {name: weight for name, weight in network.named_parameters() if weight.requires_grad and name not in inside}
    tensors |= {
        f"{PREFIX}{names[name].names[0]}": names[name].give([weight.detach().cpu()]) for name, weight in new.items()
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    some = next(iter(found.values()))
    rank, alpha = len(some.down), some.alpha
    fused = {module: size for module, size in ranks.items() if size != rank}
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": str(base.folder),
        "r": rank,
        "lora_alpha": _number(alpha),
        "target_modules": sorted(ranks),
        "rank_pattern": fused,
        "alpha_pattern": {module: _number(alpha * size / rank) for module, size in fused.items()},
        "fan_in_fan_out": any(slot.turned for parts in groups.values() for slot, _ in parts),
        "modules_to_save": list(dict.fromkeys(names[name].names[0].rpartition(".")[0] for name in new)) or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    write_json(folder / CONFIG, config)


def _together(parts: list[tuple[TensorSpec, Adapted]]) -> tuple[Tensor, Tensor]:
    """lora_A and lora_B of one tensor in the file, for one projection of ours or for several that it holds."""
    downs = [adapted.down.detach().cpu().float() for _, adapted in parts]
    ups = [adapted.up.detach().cpu().float() for _, adapted in parts]
    if parts[0][0].parts == 1:
        return downs[0], ups[0]
    rank, slots = len(downs[0]), [slot for slot, _ in parts]
    wide = [torch.zeros(len(ups[0]), rank * len(parts)) for _ in range(slots[0].parts)]
    for number, (slot, up) in enumerate(zip(slots, ups, strict=True)):
        wide[slot.part][:, number * rank : (number + 1) * rank] = up
    return torch.cat(downs), slots[0]._replace(turned=False).give(wide)


def _number(value: float) -> float:
    """Whole where it is: PEFT's alpha is a whole number."""
    return int(value) if value == int(value) else value
