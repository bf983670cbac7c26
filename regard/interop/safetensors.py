"""Weights in safetensors files, single or sharded: read as float32, and matched to a network's parameters by name."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from regard.data.small_files import read_text
from regard.errors import UserError, listed

SINGLE = "model.safetensors"

INDEX = "model.safetensors.index.json"

PICKLED = "pytorch_model.bin"

SHARDS = "model-*-of-*.safetensors"

NEVER = re.compile("(?!)")

CONVERT = (
    f"{PICKLED} can run code when it is opened, so it is not read; if you trust it, convert it once: python -c "
    f"\"import torch, safetensors.torch as s; d = torch.load('{PICKLED}', map_location='cpu', weights_only=True); "
    "s.save_file({k: v.clone().contiguous() for k, v in d.items()}, '" + SINGLE + "')\""
)


class TensorSpec(NamedTuple):
    """How a file stores one of our parameters."""

    names: tuple[str, ...]  # the first is the one we write; the others are copies of it
    part: int = 0  # which of the `parts` parameters that the tensor holds, stacked along the outputs
    parts: int = 1
    transposed: bool = False  # (inputs, outputs), as in GPT-2
    leading_axis: bool = False  # (1, n) for our (n)
    write_copies: bool = False  # others read a copy: all names are written, and the first that is present is read
    groups: int = 1  # in which the parts are interleaved, such as heads
    scale: float = 1.0  # theirs is ours times this, a power of two, so that no bit is lost

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the file's tensor for a parameter of this shape."""
        theirs = (ours[0] * self.parts, *ours[1:])
        theirs = theirs[::-1] if self.transposed else theirs
        return (1, *theirs) if self.leading_axis else theirs

    def from_file(self, tensor: Tensor) -> Tensor:
        """Our parameter from the file's tensor."""
        tensor = tensor[0] if self.leading_axis else tensor
        tensor = tensor.T if self.transposed else tensor
        ours = tensor.unflatten(0, (self.groups, self.parts, -1))[:, self.part].flatten(0, 1)
        return ours if self.scale == 1 else ours / self.scale

    def to_file(self, parts: list[Tensor]) -> Tensor:
        """The file's tensor from all our parameters in it."""
        grouped = [tensor.unflatten(0, (self.groups, -1)) for tensor in parts]
        tensor = torch.stack(grouped, 1).flatten(0, 2) if len(parts) > 1 else parts[0]
        tensor = tensor if self.scale == 1 else tensor * self.scale
        tensor = tensor.T if self.transposed else tensor
        return tensor[None] if self.leading_axis else tensor


TensorSpecs = Mapping[str, TensorSpec]  # by the name of our parameter

RANDOM_INIT = {Tensor.normal_, Tensor.uniform_, init.normal_, init.uniform_, init.kaiming_uniform_,
               init.xavier_uniform_}  # fmt: skip


class SkipInit(TorchFunctionMode):
    """Inside, a new network draws no random numbers for parameters that are then read from a file."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RANDOM_INIT:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, a new network has shapes only: it takes no memory."""
    with torch.device("meta"), SkipInit():
        yield


def read_json(path: Path, expected: type = dict) -> Any:
    """The object, or list, in a JSON file."""
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: not found; a checkpoint folder has config.json, {SINGLE} and a tokenizer") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON that can be read ({error})") from None
    if not isinstance(value, expected):
        kind = "object {…}" if expected is dict else "list […]"
        raise UserError(f"{path}: should hold a JSON {kind}, not a {type(value).__name__}")
    return value


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_weights(folder: Path, ignored: re.Pattern[str] = NEVER) -> dict[str, Tensor]:
    """A folder's tensors except the ignored, from one file or from the shards that its index lists."""
    if (folder / SINGLE).exists():
        return read_file(folder / SINGLE, ignored)
    if not (folder / INDEX).exists():
        if (folder / PICKLED).exists():
            raise UserError(f"{folder / PICKLED}: {CONVERT}")
        raise UserError(f"{folder}: no weights here; expected {SINGLE}, or shards with {INDEX}")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise UserError(f"{folder / INDEX}: has no weight_map, tensor name → file name")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file or "\\" in file or not file.endswith(".safetensors") or not file.isprintable():
            raise UserError(f"{folder / INDEX}: names the file {file!a}; a shard is a .safetensors file in this folder")
        tensors |= read_file(folder / file, ignored)
    if missing := sorted(name for name in set(weight_map) - set(tensors) if not ignored.fullmatch(name)):
        raise UserError(f"{folder / INDEX}: {listed(missing)} not in the shards it names")
    return tensors


def read_file(path: Path, ignored: re.Pattern[str] = NEVER) -> dict[str, Tensor]:
    """The tensors of one file except the ignored, as float32."""
    if path.exists() and not path.is_file():  # a FIFO or a device would never end
        raise UserError(f"{path}: not a regular file")
    try:
        path.open("rb").close()  # safe_open says "not found" also of a file without read permission
    except FileNotFoundError:
        raise UserError(f"{path}: not found") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not ignored.fullmatch(name)]  # noqa: SIM118, the file is no dict
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a complete safetensors file ({error}); download or copy it again") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise UserError(f"{path}: {name} is {tensor.dtype}; expected one of: float32, float16, bfloat16, float64")
    return {name: tensor.float() for name, tensor in tensors.items()}


def write_weights(folder: Path, network: nn.Module, specs: TensorSpecs) -> None:
    """One file; a tensor that several layers share is written once."""
    written: dict[str, TensorSpec] = {}
    weights: dict[str, dict[int, Tensor]] = {}  # by the name in the file, and by their index in its tensor
    for name, parameter in network.named_parameters():  # yields a shared parameter once
        spec = specs[name]
        written[spec.names[0]] = spec
        weights.setdefault(spec.names[0], {})[spec.part] = parameter.detach().cpu().float()
    tensors = {}
    for name, spec in written.items():
        tensors[name] = spec.to_file([weights[name][index] for index in sorted(weights[name])]).contiguous()
        if spec.write_copies:
            tensors |= {copy: tensors[name].clone() for copy in spec.names[1:]}
    write_file(folder / SINGLE, tensors, {"format": "pt"})


def write_file(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """One file, with the permissions of any other new file: the library's own are the user's alone."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        raise UserError(f"{path}: cannot be written ({error})") from None
    with suppress(OSError):  # some file systems have none
        path.chmod(mode)


@torch.no_grad()
def load_tensors(network: nn.Module, specs: TensorSpecs, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Set every parameter from its tensor. The error lists all mismatches. On "meta", only shapes are compared."""
    problems: dict[str, list[str]] = {"missing": [], "mis-shaped": [], "unlike its copy": [], "unexpected": []}
    for name, parameter in network.named_parameters():
        spec = specs[name]
        present = [theirs for theirs in spec.names if theirs in tensors]
        if not present:
            problems["missing"].append(spec.names[0])
            continue
        tensor = tensors[present[0]]
        expected = spec.shape(tuple(parameter.shape))
        if tuple(tensor.shape) != expected:
            problems["mis-shaped"].append(f"{present[0]} {tuple(tensor.shape)} instead of {expected}")
            continue
        parameter.copy_(spec.from_file(tensor))
        copies = [] if spec.write_copies else present[1:]
        unlike = [copy for copy in copies if not torch.equal(tensors[copy], tensor)]
        problems["unlike its copy"] += [f"{copy} and {present[0]}" for copy in unlike]
    known = {theirs for spec in specs.values() for theirs in spec.names}
    problems["unexpected"] = sorted(set(tensors) - known)
    if any(problems.values()):
        reasons = [f"{kind}: {listed(dict.fromkeys(names))}" for kind, names in problems.items() if names]
        raise UserError(f"{folder}: the tensors do not match config.json; {'; '.join(reasons)}")
