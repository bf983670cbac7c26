"""Tensors in files: safetensors, whole or in shards, read as float32 and fitted into a network by name."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from regard.errors import UserError

WHOLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"

SHARDS = "model-*-of-*.safetensors"

NOTHING = re.compile("(?!)")

CONVERT = (
    f"{PICKLED} can run code when it is opened and is not read; if you trust it, convert it once: python -c "
    f"\"import torch, safetensors.torch as s; d = torch.load('{PICKLED}', map_location='cpu', weights_only=True); "
    "s.save_file({k: v.clone().contiguous() for k, v in d.items()}, '" + WHOLE + "')\""
)


class TensorSpec(NamedTuple):
    """Where a file keeps a parameter of ours."""

    names: tuple[str, ...]  # the one we write first; any others are copies of it
    part: int = 0  # of a tensor that holds `parts` of ours, one below the other
    parts: int = 1
    turned: bool = False  # (inputs, outputs), as GPT-2 has it
    row: bool = False  # (1, n) for our (n)
    twice: bool = False  # its copies are written too: others ask for each
    groups: int = 1  # in which the parts take turns, such as heads
    unit: float = 1.0  # theirs is ours times this: a power of two, which costs no bit

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """Their tensor's, for a parameter of this shape."""
        whole = (ours[0] * self.parts, *ours[1:])
        whole = whole[::-1] if self.turned else whole
        return (1, *whole) if self.row else whole

    def take(self, tensor: Tensor) -> Tensor:
        """Our parameter, from their tensor."""
        whole = tensor[0] if self.row else tensor
        whole = whole.T if self.turned else whole
        found = whole.unflatten(0, (self.groups, self.parts, -1))[:, self.part].flatten(0, 1)
        return found if self.unit == 1 else found / self.unit

    def give(self, parts: list[Tensor]) -> Tensor:
        """Their tensor, from all our parameters in it."""
        turns = [part.unflatten(0, (self.groups, -1)) for part in parts]
        whole = torch.stack(turns, 1).flatten(0, 2) if len(parts) > 1 else parts[0]
        whole = whole if self.unit == 1 else whole * self.unit
        whole = whole.T if self.turned else whole
        return whole[None] if self.row else whole


DRAWS = {Tensor.normal_, Tensor.uniform_, init.normal_, init.uniform_, init.kaiming_uniform_, init.xavier_uniform_}


class SkipInit(TorchFunctionMode):
    """Inside, a new network draws no random numbers for what is filled from a file anyway."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, a new network is its shapes alone: no memory and no numbers."""
    with torch.device("meta"), SkipInit():
        yield


Names = Mapping[str, TensorSpec]  # of every parameter of ours


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: not found; a checkpoint folder has config.json, {WHOLE} and a tokenizer") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON that can be read ({error})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: should hold a JSON object {{…}}, not a {type(found).__name__}")
    return found


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_weights(folder: Path, ignored: re.Pattern[str] = NOTHING) -> dict[str, Tensor]:
    """All tensors of a folder but the ignored, from one file or from the shards that its index names."""
    if (folder / WHOLE).exists():
        return read_file(folder / WHOLE, ignored)
    if not (folder / INDEX).exists():
        if (folder / PICKLED).exists():
            raise UserError(f"{folder / PICKLED}: {CONVERT}")
        raise UserError(f"{folder}: no weights here; possible: {WHOLE}, or shards with {INDEX}")
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UserError(f"{folder / INDEX}: has no weight_map, tensor name → file name")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or "\\" in file or not file.endswith(".safetensors"):
            raise UserError(f"{folder / INDEX}: names the file '{file}'; a shard is a .safetensors file in this folder")
        tensors |= read_file(folder / file, ignored)
    if absent := sorted(name for name in set(places) - set(tensors) if not ignored.fullmatch(name)):
        raise UserError(f"{folder / INDEX}: {_some(absent)} not in the shards it names")
    return tensors


def read_file(path: Path, ignored: re.Pattern[str] = NOTHING) -> dict[str, Tensor]:
    """The tensors of one file but the ignored."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not ignored.fullmatch(name)]  # noqa: SIM118, the file is no dict
            found = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise UserError(f"{path}: not found") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); fetch or copy it again") from None
    for name, tensor in found.items():
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise UserError(f"{path}: {name} is {tensor.dtype}; possible: float32, float16, bfloat16, float64")
    return {name: tensor.float() for name, tensor in found.items()}


def write_weights(folder: Path, network: nn.Module, names: Names) -> None:
    """One file; a tensor that several layers share is written once."""
    slots: dict[str, TensorSpec] = {}
    parts: dict[str, dict[int, Tensor]] = {}
    for ours, parameter in network.named_parameters():  # names a shared parameter once
        slot = names[ours]
        slots[slot.names[0]] = slot
        parts.setdefault(slot.names[0], {})[slot.part] = parameter.detach().cpu().float()
    wholes = {name: slots[name].give([found[part] for part in sorted(found)]) for name, found in parts.items()}
    tensors = {name: whole.contiguous() for name, whole in wholes.items()}
    for slot in [slot for slot in slots.values() if slot.twice]:
        tensors |= {name: tensors[slot.names[0]].clone() for name in slot.names[1:]}
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})


@torch.no_grad()
def fill(network: nn.Module, names: Names, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Every parameter from its tensor; all that does not fit is told by name. On "meta" it is a mere comparison."""
    problems: dict[str, list[str]] = {"missing": [], "mis-shaped": [], "unlike its copy": [], "unexpected": []}
    for ours, parameter in network.named_parameters():
        slot = names[ours]
        theirs = [name for name in slot.names if name in tensors]
        if not theirs:
            problems["missing"].append(slot.names[0])
            continue
        first, wanted = tensors[theirs[0]], slot.shape(tuple(parameter.shape))
        if tuple(first.shape) != wanted:
            problems["mis-shaped"].append(f"{theirs[0]} {tuple(first.shape)} instead of {wanted}")
            continue
        parameter.copy_(slot.take(first))
        unlike = [name for name in theirs[1:] if not torch.equal(tensors[name], first)]
        problems["unlike its copy"] += [f"{name} and {theirs[0]}" for name in unlike]
    known = {name for slot in names.values() for name in slot.names}
    problems["unexpected"] = sorted(set(tensors) - known)
    if any(problems.values()):
        told = [f"{kind}: {_some(list(dict.fromkeys(found)))}" for kind, found in problems.items() if found]
        raise UserError(f"{where}: the tensors do not fit config.json; {'; '.join(told)}")


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
